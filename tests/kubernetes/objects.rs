//! The objects of the tests, and who writes them.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api_server::{self, ApiServer};

/// Somebody who may change everything.
pub(crate) struct Admin(Client);

impl Admin {
    pub(crate) async fn connect(api: &ApiServer) -> Self {
        Self(api_server::client(&api.kubeconfig("admin")).await)
    }

    pub(crate) async fn namespace(&self, name: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        apply(&Api::<Namespace>::all(self.0.clone()), name, &namespace).await;
    }

    /// The rights of the manifest for the user `xds`.
    pub(crate) async fn grant_xds(&self) {
        let manifest = include_str!("../../examples/deploy/kubernetes/xds.yaml");
        let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
        let of = |kind: &str| documents.iter().find(|document| document["kind"] == kind).unwrap().clone();
        apply(&Api::<ClusterRole>::all(self.0.clone()), "xds", &of("ClusterRole")).await;
        let mut binding = of("ClusterRoleBinding");
        binding["subjects"] =
            json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "xds"}]);
        apply(&Api::<ClusterRoleBinding>::all(self.0.clone()), "xds", &binding).await;
    }

    /// A ConfigMap with one file, for xds to read.
    pub(crate) async fn config_map(&self, name: &str, file: &str) {
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"xds": "serve"}},
            "data": {"r.json": file},
        });
        apply(&Api::<ConfigMap>::namespaced(self.0.clone(), "shop"), name, &map).await;
    }

    pub(crate) async fn slice(&self, slice: &Value) {
        let name = slice["metadata"]["name"].as_str().unwrap();
        apply(&Api::<EndpointSlice>::namespaced(self.0.clone(), "shop"), name, slice).await;
    }

    pub(crate) async fn delete_slice(&self, name: &str) {
        let slices = Api::<EndpointSlice>::namespaced(self.0.clone(), "shop");
        slices.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// Creates the object, or replaces what it has.
async fn apply<K>(api: &Api<K>, name: &str, object: &Value)
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let patch = PatchParams::apply("tests").force();
    api.patch(name, &patch, &Patch::Apply(object)).await.unwrap();
}

/// A slice of a service in `shop`, with its port `http`. Endpoints are addresses with their state.
pub(crate) fn slice(service: &str, name: &str, endpoints: &[(&str, &str)], port: u16) -> Value {
    let endpoint = |(address, state): &(&str, &str)| {
        let conditions = match *state {
            "ready" => json!({"ready": true, "serving": true, "terminating": false}),
            "draining" => json!({"ready": false, "serving": true, "terminating": true}),
            _ => json!({"ready": false, "serving": false, "terminating": false}),
        };
        json!({"addresses": [address], "zone": "here", "conditions": conditions})
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": port}],
    })
}

/// A slice of one family whose endpoints are addresses of pods; without endpoints it has no ports.
pub(crate) fn of_pods(service: &str, name: &str, family: &str, endpoints: &[(&str, &str)]) -> Value {
    let ready: Vec<_> = endpoints.iter().map(|(address, _)| (*address, "ready")).collect();
    let mut slice = slice(service, name, &ready, 80);
    slice["addressType"] = family.into();
    for (at, (_, pod)) in endpoints.iter().enumerate() {
        slice["endpoints"][at]["targetRef"] =
            json!({"kind": "Pod", "namespace": "shop", "name": pod, "uid": format!("uid-of-{pod}")});
    }
    if endpoints.is_empty() {
        slice["ports"] = json!([]);
    }
    slice
}
