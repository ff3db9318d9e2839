//! `/api/clients`: the connected clients, their resources, and whether they ACKed them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use serde_json::{Value, json};
use xds_core::server::{ReportStatus, ResourceReport, TypeReport};
use xds_core::{ClientName, SkippedMetadata, Snapshot, TypeUrl, shortened};
use xds_server::{ClientStream, ConnectedClient, LastNack};

use super::AdminState;
use super::answer::{ApiError, JsonAnswer, JsonBody, at_ms, paged, parameters, when};
use super::query::{RequestQuery, Search};

/// A page of clients. `rejecting=true` selects clients that rejected something that was not
/// corrected.
pub(super) async fn list(State(state): State<Arc<AdminState>>, query: RequestQuery) -> JsonAnswer {
    query.only(&["page", "rejecting", "search"])?;
    let (page, search, is_rejecting) = (query.page()?, query.search(), query.switch("rejecting")?);
    Ok(JsonBody(
        state
            .work(move |state| {
                let mut clients = state.clients.list();
                let (connected, mut text) = (clients.len(), String::new());
                clients.retain(|client| {
                    (!is_rejecting || rejects(client)) && is_found(client, &search, &mut text)
                });
                let mut answer = paged(&clients, page, |client| row(client, SHORT));
                answer.insert("connected".into(), connected.into());
                answer.into()
            })
            .await,
    ))
}

/// One client with a page of its resources: the rejected ones first, then those that it has not
/// ACKed.
pub(super) async fn one(
    State(state): State<Arc<AdminState>>,
    Path(id): Path<String>,
    query: RequestQuery,
) -> JsonAnswer {
    query.only(&["cluster", "identity", "page", "search", "type"])?;
    let (page, search) = (query.page()?, query.search());
    let only = query.type_url(&state.cache.snapshot())?;
    let [cluster, identity] = ["cluster", "identity"].map(|key| query.text(key).to_owned());
    let found = Arc::clone(&state).work(move |state| {
        let fits = |expected: &str, actual: &str| expected.is_empty() || expected == actual;
        let is_it = |client: &ConnectedClient| {
            let name = client.name();
            let is_named = *name.id == *id || (name.id.is_empty() && stream_key(&client.streams()[0]) == id);
            is_named && fits(&cluster, &name.cluster) && fits(&identity, client.identity())
        };
        state.clients.list().into_iter().find(is_it).ok_or(id)
    });
    let client = found.await.map_err(|id| ApiError::missing(format!("no client {id:?} is connected now")))?;
    let mut reports = Vec::new();
    for stream in client.streams().iter().take(STREAMS_SHOWN) {
        reports.extend(stream.report().await.unwrap_or_default());
    }
    Ok(JsonBody(
        state
            .work(move |state| {
                let skipped = skipped_metadata(&client, &state.cache.snapshot());
                let mut answer = whole(&client, &reports, only.as_ref(), &search, page);
                answer["skipped_metadata"] = skipped;
                answer
            })
            .await,
    ))
}

fn whole(
    client: &ConnectedClient,
    reports: &[TypeReport],
    only: Option<&TypeUrl>,
    search: &Search,
    page: usize,
) -> Value {
    let mut types = BTreeMap::<_, [usize; 4]>::new();
    let mut resources = Vec::new();
    for report in reports {
        let counts = types.entry(&report.type_url).or_default();
        for resource in &report.resources {
            counts[weight(&resource.status)] += 1;
            if only.is_none_or(|only| *only == report.type_url) && search.finds(resource.name.as_str()) {
                resources.push((&report.type_url, resource));
            }
        }
    }
    resources.sort_by_key(|(type_url, resource)| (weight(&resource.status), *type_url, &resource.name));
    let types = types.into_iter().map(|(type_url, [rejected, stale, not_sent, synced])| {
        json!({
            "type": type_url.as_str(), "rejected": rejected, "stale": stale, "not_sent": not_sent, "synced": synced,
        })
    });
    let streams = client.streams().iter().take(STREAMS_SHOWN).map(|stream| {
        let counts = stream.counts();
        json!({
            "id": stream.id(), "label": stream.label(), "opened_at_ms": at_ms(stream.opened_at()),
            "sent": counts.sent, "acked": counts.acked, "nacked": counts.nacked,
            "last_nack": stream.last_nack().as_ref().map(|nack| last_nack(nack, usize::MAX)),
        })
    });
    let mut answer = row(client, usize::MAX);
    answer["streams"] = streams.collect();
    answer["types"] = types.collect();
    answer["resources"] = paged(&resources, page, |(type_url, resource)| entry(type_url, resource)).into();
    answer
}

/// T46: the metadata that gives no parameter; first that whose key some `when:` names.
fn skipped_metadata(client: &ConnectedClient, snapshot: &Snapshot) -> Value {
    let skipped = client.skipped_metadata().iter();
    let mut skipped: Vec<_> =
        skipped.map(|skipped| (!snapshot.is_key_named(&skipped.parameter), skipped)).collect();
    skipped.sort_by_key(|(is_unnamed, _)| *is_unnamed);
    let row = |(is_unnamed, skipped): (bool, &SkippedMetadata)| {
        json!({
            "parameter": &*skipped.parameter,
            "path": skipped.path,
            "found": skipped.found.to_string(),
            "is_named": !is_unnamed,
            "cure": skipped.cure(),
        })
    };
    skipped.into_iter().map(row).collect()
}

fn row(client: &ConnectedClient, words: usize) -> Value {
    let streams = client.streams();
    let counts = streams.iter().map(ClientStream::counts);
    let [sent, acked, nacked] = counts
        .fold([0; 3], |[sent, acked, nacked], of| [sent + of.sent, acked + of.acked, nacked + of.nacked]);
    let since = streams.iter().map(ClientStream::opened_at).min();
    let labels: Vec<_> = streams.iter().take(LABELS_SHOWN).map(ClientStream::label).collect();
    json!({
        "id": &*client.name().id,
        "cluster": &*client.name().cluster,
        "path": path(client.name(), client.identity(), streams.first()),
        "identity": Some(client.identity()).filter(|identity| !identity.is_empty()),
        "user_agent": client.user_agent(),
        "parameters": parameters(client.parameters()),
        "stream_count": streams.len(),
        "services": labels,
        "connected_at_ms": since.map(at_ms),
        "sent": sent,
        "acked": acked,
        "nacked": nacked,
        "last_nack": client.last_nack().as_ref().map(|nack| last_nack(nack, words)),
    })
}

fn last_nack(nack: &LastNack, words: usize) -> Value {
    json!({
        "type": nack.type_url.as_str(),
        "detail": nack.detail.chars().take(words).collect::<String>(),
        "at_ms": at_ms(nack.at),
        "is_followed_by_ack": nack.is_followed_by_ack,
    })
}

fn entry(type_url: &TypeUrl, resource: &ResourceReport) -> Value {
    let (status, detail) = match &resource.status {
        ReportStatus::NotSent => ("not_sent", None),
        ReportStatus::Stale => ("stale", None),
        ReportStatus::Synced => ("synced", None),
        ReportStatus::Rejected { .. } => ("rejected", resource.status.rejection()),
    };
    json!({
        "type": type_url.as_str(),
        // The name and parameters of an absent resource come from the client and may be long.
        "name": shortened(resource.name.as_str(), NAME_LIMIT_BYTES),
        "when": when(&resource.constraints).map(|when| shortened(&when, NAME_LIMIT_BYTES).into_owned()),
        "version": resource.content.as_ref().map(|(_, version)| version.to_string()),
        "digest": resource.content.as_ref().map(|(variant, _)| variant.version().to_string()),
        "status": status,
        "detail": detail,
    })
}

/// The path of a client in this API, from what the client says of itself. A client without an id is
/// found by its stream.
pub(super) fn path(name: &ClientName, identity: &str, stream: Option<&ClientStream>) -> String {
    let id =
        if name.id.is_empty() { stream.map(stream_key).unwrap_or_default() } else { name.id.to_string() };
    let mut path = format!("/api/clients/{}", encoded(&id));
    let mut before = '?';
    for (key, value) in [("cluster", &*name.cluster), ("identity", identity)] {
        if !value.is_empty() {
            path.extend([&*format!("{before}{key}="), &*encoded(value)]);
            before = '&';
        }
    }
    path
}

fn stream_key(stream: &ClientStream) -> String {
    format!("stream:{}", stream.id())
}

/// Percent-encodes all characters except letters, digits, `-`, `_` and `~`.
pub(super) fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_~".contains(&byte);
    let byte = |byte: u8| {
        if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(byte).collect()
}

/// Whether a client contains the search words. `text` is a buffer that all clients share.
fn is_found(client: &ConnectedClient, search: &Search, text: &mut String) -> bool {
    if search.is_empty() {
        return true;
    }
    let name = client.name();
    text.clear();
    text.extend([&*name.id, " ", &*name.cluster, " ", client.user_agent(), " ", client.identity()]);
    for (key, value) in client.parameters().iter() {
        text.extend([" ", &**key, "=", &**value]);
    }
    search.finds(text)
}

fn rejects(client: &ConnectedClient) -> bool {
    client.streams().iter().any(|stream| !stream.standing_nacks().is_empty())
}

/// The order of resources: those that need attention come first.
fn weight(status: &ReportStatus) -> usize {
    match status {
        ReportStatus::Rejected { .. } => 0,
        ReportStatus::Stale => 1,
        ReportStatus::NotSent => 2,
        ReportStatus::Synced => 3,
    }
}

/// The longest name, and the longest condition, in an answer.
const NAME_LIMIT_BYTES: usize = 4096;

/// The characters of a NACK's message in a list.
const SHORT: usize = 200;

/// Streams of one client that an answer reports. A client has one stream, or one per type.
const STREAMS_SHOWN: usize = 32;

/// Stream labels per client in a list.
const LABELS_SHOWN: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_with_the_same_node_have_different_paths() {
        let name = ClientName { id: "edge/1".into(), cluster: "a b".into() };
        let path = |identity: &str| path(&name, identity, None);
        assert_eq!(path(""), "/api/clients/edge%2F1?cluster=a%20b");
        assert_eq!(path("x&y=z"), "/api/clients/edge%2F1?cluster=a%20b&identity=x%26y%3Dz");
        let name = ClientName { cluster: "".into(), ..name };
        assert_eq!(super::path(&name, "a.b", None), "/api/clients/edge%2F1?identity=a%2Eb");
    }
}
