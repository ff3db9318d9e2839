//! Kubernetes as a source of `xds serve`.

use std::sync::Arc;

use clap::{ArgGroup, Args};
use xds::folder::Descriptors;
use xds::kubernetes::{Kubernetes, Selection};
use xds::{Cache, Reloads};

use super::migrate::Stop;
use crate::cli::running::shutdown;
use crate::cli::{Failure, counted};

#[derive(Debug, Args)]
#[command(next_help_heading = "Kubernetes")]
#[command(group = ArgGroup::new(READS).multiple(true).args(&SOURCES[1..]))]
pub(super) struct KubernetesOptions {
    /// Serve the endpoints of services as assignments: NAMESPACE/SERVICE/PORT, by the name of the
    /// port; NAMESPACE/SERVICE for a port without a name
    ///
    /// They come from EndpointSlices. Zones are localities. Endpoints that are not ready are
    /// UNHEALTHY, and DRAINING while they terminate and still serve.
    ///
    /// The API server is that of KUBECONFIG, or that of the pod. The server waits for it before it
    /// listens. While it is away later, everything stays as it is.
    #[arg(long, conflicts_with_all = ["store", "rollout"])]
    kubernetes_endpoints: bool,
    /// Serve the resources in ConfigMaps with these labels, such as xds=serve; each key is a file as
    /// in DIR
    #[arg(long, value_name = "LABELS", conflicts_with_all = ["store", "rollout"])]
    kubernetes_config_maps: Option<String>,
    /// Serve Secrets of type kubernetes.io/tls with these labels as SDS secrets: NAMESPACE/NAME, and
    /// NAMESPACE/NAME/ca for ca.crt
    ///
    /// Clients that may subscribe to them get private keys: use TLS and --policy.
    #[arg(long, value_name = "LABELS", conflicts_with_all = ["store", "rollout"])]
    kubernetes_secrets: Option<String>,
    /// Read only this namespace; may be repeated
    #[arg(long, value_name = "NAMESPACE", requires = READS)]
    kubernetes_namespace: Vec<String>,
    /// ConfigMaps of this namespace may bring any name; may be repeated. Those of others may bring
    /// only names that begin with NAMESPACE/
    #[arg(long, value_name = "NAMESPACE", requires = READS)]
    kubernetes_trusted_namespace: Vec<String>,
}

/// What comes after the start of the source.
pub(super) enum Started {
    /// It has loaded everything; `None` without the options.
    Loaded(Option<ServedKubernetes>),
    /// There was a signal meanwhile.
    Stopped,
}

/// A source that has loaded everything.
#[derive(Debug)]
pub(super) struct ServedKubernetes(Kubernetes);

impl KubernetesOptions {
    fn selection(&self) -> Option<Selection> {
        let selection = Selection {
            endpoints: self.kubernetes_endpoints,
            config_maps: self.kubernetes_config_maps.clone(),
            secrets: self.kubernetes_secrets.clone(),
            namespaces: self.kubernetes_namespace.iter().cloned().collect(),
            trusted_namespaces: self.kubernetes_trusted_namespace.iter().cloned().collect(),
        };
        let reads = selection.endpoints || selection.config_maps.is_some() || selection.secrets.is_some();
        reads.then_some(selection)
    }

    /// Waits for the API server, and commits what it has. From then on a signal ends `stop`.
    pub(super) async fn start(
        &self,
        cache: &Arc<Cache>,
        descriptors: &Arc<Descriptors>,
        stop: &mut Option<Stop>,
    ) -> Result<Started, Failure> {
        let Some(selection) = self.selection() else { return Ok(Started::Loaded(None)) };
        let mut signal: Stop = Box::pin(shutdown().map_err(Failure::System)?);
        let started = Kubernetes::start(&selection, Arc::clone(descriptors)).await;
        let mut kubernetes = started.map_err(Failure::Kubernetes)?;
        tokio::select! {
            () = kubernetes.load(cache) => {}
            () = &mut signal => return Ok(Started::Stopped),
        }
        *stop = Some(signal);
        Ok(Started::Loaded(Some(ServedKubernetes(kubernetes))))
    }
}

impl ServedKubernetes {
    pub(super) fn reloads(&self) -> Arc<Reloads> {
        Arc::clone(self.0.reloads())
    }

    pub(super) fn summary(&self) -> String {
        let (services, others) = self.0.counts();
        format!("Kubernetes: {}, {}", counted(services, "service"), counted(others, "other object"))
    }

    pub(super) async fn watch(self, cache: Arc<Cache>) {
        self.0.watch(cache).await;
    }
}

/// The options that say what is read.
const READS: &str = "kubernetes_source";

/// The options that are a source by themselves, so that DIR may be missing.
pub(super) const SOURCES: [&str; 4] =
    ["store", "kubernetes_endpoints", "kubernetes_config_maps", "kubernetes_secrets"];
