//! The software bill of materials, as CycloneDX 1.5.

use cargo_metadata::Package;
use cyclonedx_bom::external_models::spdx::SpdxExpression;
use cyclonedx_bom::models::bom::{Bom, SpecVersion};
use cyclonedx_bom::models::component::{Classification, Component, Components};
use cyclonedx_bom::models::dependency::{Dependencies, Dependency};
use cyclonedx_bom::models::license::{LicenseChoice, Licenses};
use cyclonedx_bom::models::metadata::Metadata;
use cyclonedx_bom::prelude::{NormalizedString, Purl, Validate as _};

use super::DistError;
use super::packages::Packages;

/// The document. It has no time and no random number, so equal content is equal text.
pub(super) fn render(packages: &Packages) -> Result<String, DistError> {
    let all = packages.all();
    let (ours, others): (Vec<_>, Vec<_>) = all.iter().partition(|package| package.name.as_str() == "xds");
    let [root] = ours[..] else { return Err(DistError::Sbom("there is no package xds".into())) };
    let bom = Bom {
        serial_number: None,
        metadata: Some(Metadata {
            component: Some(component(root, Classification::Application)?),
            ..Metadata::default()
        }),
        components: Some(Components(
            others
                .iter()
                .map(|package| component(package, Classification::Library))
                .collect::<Result<_, _>>()?,
        )),
        dependencies: Some(Dependencies(
            all.iter()
                .map(|package| Dependency {
                    dependency_ref: reference(package),
                    dependencies: packages.needed_by(&package.id).into_iter().map(reference).collect(),
                })
                .collect(),
        )),
        spec_version: SpecVersion::V1_5,
        ..Bom::default()
    };
    let validation = bom.validate_version(SpecVersion::V1_5);
    if validation.has_errors() {
        return Err(DistError::Sbom(format!("{validation:?}")));
    }
    let mut text = Vec::new();
    bom.output_as_json_v1_5(&mut text).map_err(|error| DistError::Sbom(error.to_string()))?;
    text.push(b'\n');
    String::from_utf8(text).map_err(|error| DistError::Sbom(error.to_string()))
}

fn component(package: &Package, kind: Classification) -> Result<Component, DistError> {
    let (name, version) = (package.name.as_str(), package.version.to_string());
    let mut component = Component::new(kind, name, &version, Some(reference(package)));
    // Only what comes from the registry has an address there; `xds-core` of the registry is not ours.
    if package.source.as_ref().is_some_and(cargo_metadata::Source::is_crates_io) {
        let purl = Purl::new("cargo", name, &version);
        component.purl = Some(purl.map_err(|error| DistError::Sbom(format!("{name}: {error}")))?);
    }
    component.description = package.description.as_deref().map(NormalizedString::new);
    if let Some(license) = &package.license {
        let expression = SpdxExpression::parse_lax(license.clone());
        let expression = expression.map_err(|error| DistError::Sbom(format!("{name}: {error}")))?;
        component.licenses = Some(Licenses(vec![LicenseChoice::Expression(expression)]));
    }
    Ok(component)
}

fn reference(package: &Package) -> String {
    format!("{}@{}", package.name, package.version)
}
