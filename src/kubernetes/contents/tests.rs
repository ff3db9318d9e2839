use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use prost::Message as _;

use super::*;

pub(in crate::kubernetes) fn rules(trusted: &[&str]) -> Rules {
    let trusted = trusted.iter().map(|namespace| (*namespace).into()).collect();
    Rules { trusted, descriptors: Arc::new(Descriptors::envoy()) }
}

/// A ConfigMap of these files.
pub(in crate::kubernetes) fn config_map(namespace: &str, name: &str, files: &[(&str, &str)]) -> ConfigMap {
    let data = files.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    ConfigMap { data: Some(data), metadata: metadata(namespace, name), ..ConfigMap::default() }
}

pub(in crate::kubernetes) fn cluster(name: &str) -> String {
    format!("'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: {name}\n")
}

fn metadata(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { namespace: Some(namespace.into()), name: Some(name.into()), ..ObjectMeta::default() }
}

fn read(trusted: &[&str], files: &[(&str, &str)]) -> Result<Vec<String>, Vec<String>> {
    let read = rules(trusted).config_map("shop", config_map("shop", "a", files));
    let names = |resources: Vec<Resource>| {
        resources.iter().map(|resource| resource.name().as_str().to_owned()).collect()
    };
    read.map(names).map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

#[test]
fn keys_are_files_and_keys_with_another_ending_are_not_read() {
    let (one, two) = (cluster("shop/one"), cluster("shop/two"));
    let files = [("a.yaml", &*one), ("b.yml", &two), ("README", "no YAML: ["), ("c.txt", "")];
    assert_eq!(read(&[], &files), Ok(vec!["shop/one".into(), "shop/two".into()]));
    assert_eq!(read(&[], &files[2..]), Err(vec!["no key ends in .yaml, .yml, .json or .pb".into()]));
}

#[test]
fn all_errors_are_found_with_their_files_and_lines() {
    let unknown = cluster("shop/a") + "nmae: b\n";
    let errors = read(&[], &[("a.yaml", &unknown), ("b.yaml", "x: 1")]).unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("a.yaml:3:1: ") && errors[0].contains("nmae"), "{errors:?}");
    assert!(errors[1].starts_with("b.yaml:1:1: "), "{errors:?}");
}

#[test]
fn a_namespace_brings_its_own_names_unless_it_is_trusted() {
    for name in ["pay/web", "web", "shop", "shopping/web", "/shop/web"] {
        let file = cluster(name);
        let files = [("a.yaml", &*file)];
        let refused = format!(
            "envoy.config.cluster.v3.Cluster {name:?}: namespace shop may bring only names that begin with \"shop/\", \
             unless --kubernetes-trusted-namespace lists it"
        );
        assert_eq!(read(&["pay"], &files), Err(vec![refused]));
        assert_eq!(read(&["shop"], &files), Ok(vec![name.into()]));
    }
}

#[test]
fn other_names_of_a_resource_are_in_bounds_too() {
    let wrapper = "'@type': type.googleapis.com/envoy.service.discovery.v3.Resource\nname: shop/a\naliases: [pay/a]\n\
                   resource: {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: shop/a}\n";
    let refused = read(&[], &[("a.yaml", wrapper)]).unwrap_err();
    assert!(refused[0].contains("Cluster \"pay/a\": namespace shop may bring only"), "{refused:?}");
    assert_eq!(read(&[], &[("a.yaml", &wrapper.replace("pay/a", "shop/b"))]), Ok(vec!["shop/a".into()]));
}

/// A Secret of type kubernetes.io/tls.
fn secret(data: &[(&str, &str)]) -> Secret {
    let data = data.iter().map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())));
    let (data, metadata) = (Some(data.collect()), metadata("shop", "web"));
    Secret { data, metadata, type_: Some(TLS_TYPE.into()), ..Secret::default() }
}

fn problems(secret: Secret) -> Vec<String> {
    sds_secrets("shop", "web", secret).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn a_tls_secret_is_a_certificate_and_its_authorities_a_validation_context() {
    let made = rcgen::generate_simple_self_signed(["web.shop".to_owned()]).unwrap();
    let (pem, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let all = [("tls.crt", &*pem), ("tls.key", &*key), ("ca.crt", &*pem)];
    let resources = sds_secrets("shop", "web", secret(&all)).unwrap();
    let names: Vec<_> = resources.iter().map(|resource| resource.name().as_str()).collect();
    assert_eq!(names, ["shop/web", "shop/web/ca"]);
    let [certificate, context] =
        [0, 1].map(|at: usize| SdsSecret::decode(resources[at].payload().clone()).unwrap().r#type.unwrap());
    let Type::TlsCertificate(certificate) = certificate else { panic!("{certificate:?}") };
    assert_eq!(certificate.certificate_chain, Some(inline(pem.clone().into_bytes())));
    assert_eq!(certificate.private_key, Some(inline(key.clone().into_bytes())));
    let Type::ValidationContext(context) = context else { panic!("{context:?}") };
    assert_eq!(context.trusted_ca, Some(inline(pem.clone().into_bytes())));
    assert_eq!(sds_secrets("shop", "web", secret(&all[..2])).unwrap().len(), 1);
    // A certificate where the key should be, and no key.
    let swapped = [("tls.crt", &*pem), ("tls.key", &*pem)];
    assert_eq!(problems(secret(&swapped)), ["tls.key has no private key in PEM"]);
}

#[test]
fn what_is_wrong_with_a_secret_is_said_without_its_content() {
    let all = [("tls.crt", "SECRET"), ("tls.key", ""), ("ca.crt", "SECRET")];
    let expected = [
        "tls.crt has no certificate in PEM",
        "tls.key is missing or empty",
        "ca.crt has no certificate in PEM",
    ];
    assert_eq!(problems(secret(&all)), expected);
    let opaque = Secret { type_: Some("Opaque".into()), ..secret(&all) };
    assert_eq!(problems(opaque), ["the type is \"Opaque\"; only kubernetes.io/tls becomes SDS secrets"]);
}
