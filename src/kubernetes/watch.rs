//! Lists and watches: what the API server sends, as changes of a [`State`](super::state::State).
//!
//! kube's watcher lists in pages, watches, resumes after a lost connection, and lists again when
//! the API server no longer has the history (410). This module runs one per kind and namespace.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::object::Kind;
use super::state::{Change, Object, WatchScope};
use crate::source::{Backoff, chain};

/// A message of a watch.
#[derive(Debug)]
pub(super) struct Message {
    /// The number of the watch.
    pub(super) watch: usize,
    pub(super) news: News,
}

#[derive(Debug)]
pub(super) enum News {
    Change(Change),
    /// The API server does not answer, or refuses. The watch tries again.
    Away(String),
    /// It answers again.
    Back,
}

/// A kind that is watched.
trait Watched:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + DeserializeOwned + Clone + Debug
{
    fn object(self) -> Object;
}

impl Watched for EndpointSlice {
    fn object(self) -> Object {
        Object::Slice(Box::new(self))
    }
}

impl Watched for ConfigMap {
    fn object(self) -> Object {
        Object::ConfigMap(Box::new(self))
    }
}

impl Watched for Secret {
    fn object(self) -> Object {
        Object::Secret(Box::new(self))
    }
}

/// Starts a watch of the objects with these labels.
pub(super) fn start(
    tasks: &mut JoinSet<()>,
    client: &Client,
    (watch, scope): (usize, &WatchScope),
    labels: Option<&str>,
    sender: &Sender<Message>,
) {
    match scope.kind {
        Kind::Service | Kind::EndpointSlice => {
            spawn::<EndpointSlice>(tasks, client, watch, scope, labels, sender);
        }
        Kind::ConfigMap => spawn::<ConfigMap>(tasks, client, watch, scope, labels, sender),
        Kind::Secret => spawn::<Secret>(tasks, client, watch, scope, labels, sender),
    }
}

fn spawn<K: Watched + Send + Sync + 'static>(
    tasks: &mut JoinSet<()>,
    client: &Client,
    watch: usize,
    scope: &WatchScope,
    labels: Option<&str>,
    sender: &Sender<Message>,
) {
    let api: Api<K> = match &scope.namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let labels = labels.map(str::to_owned);
    let config = watcher::Config { label_selector: labels, ..watcher::Config::default() };
    let sender = sender.clone();
    tasks.spawn(async move {
        // An error means that nobody listens any longer.
        _ = follow(&api, config, watch, &sender).await;
    });
}

/// Nobody receives messages any longer.
struct Unheard;

async fn follow<K: Watched + Send + Sync + 'static>(
    api: &Api<K>,
    config: watcher::Config,
    watch: usize,
    sender: &Sender<Message>,
) -> Result<(), Unheard> {
    let send = async |news| sender.send(Message { watch, news }).await.map_err(|_closed| Unheard);
    // How long to wait after the next error; `None` while the API server answers.
    let mut away: Option<Backoff> = None;
    loop {
        let mut events = pin!(watcher(api.clone(), config.clone()));
        loop {
            let next = match away {
                None => events.next().await,
                // A watch that was resumed sends nothing until something changes. So after some
                // time without an error, ask.
                Some(_) => match timeout(QUIET, events.next()).await {
                    Ok(next) => next,
                    Err(_quiet) => {
                        if answers(api, &config).await {
                            away = None;
                            send(News::Back).await?;
                        }
                        continue;
                    }
                },
            };
            match next {
                None => break,
                Some(Ok(event)) => {
                    let change = change(event);
                    // A list that begins is not answered yet.
                    if away.is_some() && !matches!(change, Change::Listing) {
                        away = None;
                        send(News::Back).await?;
                    }
                    send(News::Change(change)).await?;
                }
                // The watcher would ask for the same lost history again.
                Some(Err(watcher::Error::WatchStartFailed(kube::Error::Api(status))))
                    if status.code == GONE =>
                {
                    sleep(Backoff::default().next_wait()).await;
                    break;
                }
                // No outage: the watcher lists again.
                Some(Err(watcher::Error::WatchError(status))) if status.code == GONE => {}
                Some(Err(error)) => {
                    send(News::Away(reason(&error))).await?;
                    sleep(away.get_or_insert_default().next_wait()).await;
                }
            }
        }
    }
}

async fn answers<K: Watched>(api: &Api<K>, config: &watcher::Config) -> bool {
    let one = ListParams { label_selector: config.label_selector.clone(), ..ListParams::default().limit(1) };
    timeout(QUIET, api.list_metadata(&one)).await.is_ok_and(|answer| answer.is_ok())
}

fn change<K: Watched>(event: Event<K>) -> Change {
    match event {
        Event::Init => Change::Listing,
        Event::InitApply(object) | Event::Apply(object) => Change::Put(object.object()),
        Event::InitDone => Change::Listed,
        Event::Delete(object) => Change::Gone(object.object().name()),
    }
}

/// Why a watch failed, for people.
fn reason(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => format!("{} ({})", status.message, status.code),
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => chain(error),
        NoResourceVersion => error.to_string(),
    }
}

/// The code of a history that the API server no longer has.
const GONE: u16 = 410;

/// How long a watch may be quiet after an error until the API server is asked whether it answers.
const QUIET: Duration = Duration::from_secs(5);
