//! Whether a server can serve clients, for its gRPC health service.

use std::fmt::Debug;

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use xds_core::TypeUrl;
use xds_proto::service::{ADS, CSDS, SERVICES};

/// Says whether a server can serve clients: a hook for servers whose cache depends on others, such
/// as a proxy.
///
/// The server calls [`is_ready`](Self::is_ready) once a second for each type that has a service,
/// after the first commit.
pub trait Readiness: Debug + Send + Sync {
    /// Whether clients can get resources of a type; with `None`, of any type.
    fn is_ready(&self, type_url: Option<&TypeUrl>) -> bool;

    /// Why the server takes no new streams at present. Their clients get `UNAVAILABLE` with this
    /// text, and can use another server; open streams stay. Default: `None`, streams are taken.
    fn refuses_streams(&self) -> Option<String> {
        None
    }
}

/// The gRPC health of each service.
pub(crate) struct ServiceHealth {
    reporter: HealthReporter,
    /// The service, its type, and the last reported status. Watchers are notified of changes only.
    services: Vec<(&'static str, Option<TypeUrl>, Option<ServingStatus>)>,
}

impl ServiceHealth {
    pub(crate) fn new(reporter: HealthReporter) -> Self {
        let of_types = SERVICES.iter().map(|row| (row.service, Some(row.type_url.into()), None));
        let services = of_types.chain([ADS, CSDS, ""].map(|service| (service, None, None))).collect();
        Self { reporter, services }
    }

    /// Reports each service as serving or not.
    pub(crate) async fn set(&mut self, is_serving: impl Fn(Option<&TypeUrl>) -> bool) {
        for (service, type_url, last) in &mut self.services {
            let status = match is_serving(type_url.as_ref()) {
                true => ServingStatus::Serving,
                false => ServingStatus::NotServing,
            };
            if last.replace(status) != Some(status) {
                self.reporter.set_service_status(*service, status).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Request;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus as Reported;
    use tonic_health::pb::health_server::Health;
    use tonic_health::server::HealthService;
    use xds_proto::type_url::CLUSTER;

    use super::*;

    #[tokio::test]
    async fn each_service_has_the_health_of_its_type() {
        let reporter = HealthReporter::new();
        let service = HealthService::from_health_reporter(reporter.clone());
        let mut health = ServiceHealth::new(reporter);
        let status = async |name: &str| {
            let request = HealthCheckRequest { service: name.to_owned() };
            service.check(Request::new(request)).await.unwrap().into_inner().status()
        };
        let clusters = "envoy.service.cluster.v3.ClusterDiscoveryService";
        let routes = "envoy.service.route.v3.RouteDiscoveryService";
        health.set(|type_url| type_url.is_none_or(|type_url| type_url.as_str() == CLUSTER)).await;
        let all = [status("").await, status(ADS).await, status(clusters).await, status(routes).await];
        let (serving, not) = (Reported::Serving, Reported::NotServing);
        assert_eq!(all, [serving, serving, serving, not]);
        health.set(|_| false).await;
        assert_eq!(status(clusters).await, not);
    }
}
