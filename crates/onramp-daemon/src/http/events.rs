//! The event stream of the HTTP server: statistics as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::{Body, Frame};
use tokio::sync::{mpsc, watch};

use super::{Answer, Site, reply, selection, told};
use crate::snapshot::{Query, Stats};

/// Streams statistics until the client leaves or the server stops.
pub(super) fn stream(query: &str, site: &Arc<Site>, stopped: watch::Receiver<bool>) -> Answer {
    let query = selection(query)?;
    let Ok(place) = Arc::clone(&site.listeners).try_acquire_owned() else {
        let why = format!("{} clients receive events already", site.limits.listeners);
        return Err((StatusCode::SERVICE_UNAVAILABLE, why));
    };
    let stats = site.sampler.listen();
    // The channel holds one event. If the client does not read that event, the client misses the
    // statistics that come in the meantime.
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        send(query, stats, sender, stopped).await;
        drop(place);
    });
    Ok(reply::with(StatusCode::OK, "text/event-stream", Events(receiver).boxed()))
}

async fn send(
    query: Query,
    mut stats: watch::Receiver<Option<Arc<Stats>>>,
    sender: mpsc::Sender<Bytes>,
    mut stopped: watch::Receiver<bool>,
) {
    // If other clients are already listening, the new client gets the latest statistics at once
    // instead of waiting for the next ones.
    stats.mark_changed();
    loop {
        tokio::select! {
            changed = stats.changed() => if changed.is_err() { return },
            () = sender.closed() => return,
            () = told(&mut stopped) => return,
        }
        let Some(latest) = stats.borrow_and_update().clone() else { continue };
        let query = query.clone();
        let written = tokio::task::spawn_blocking(move || event(&latest, &query)).await;
        let Ok(Some(event)) = written else { return };
        tokio::select! {
            sent = sender.send(event) => if sent.is_err() { return },
            () = told(&mut stopped) => return,
        }
    }
}

fn event(latest: &Stats, query: &Query) -> Option<Bytes> {
    let mut stats = latest.clone();
    stats.select(query);
    let text = serde_json::to_string(&stats).ok()?;
    Some(format!("retry: 2000\nevent: stats\ndata: {text}\n\n").into())
}

/// The body of the response to a client that listens to the event stream.
struct Events(mpsc::Receiver<Bytes>);

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
    }
}
