//! The events that one client watches, as the lines that the client gets.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Instant, sleep_until};

use super::push_line;
use crate::wire::BATCH_BYTES;

/// How long a client is left alone after it was sent events. Events that happen meanwhile are sent
/// together, because each sending wakes the daemon and the client, which costs them more than the
/// event itself. An event that happens later is sent at once.
const PAUSE: Duration = Duration::from_millis(1);

/// The events that one client watches.
#[derive(Debug)]
pub(crate) struct EventLines {
    told: Receiver<Arc<str>>,
    /// When the client may be sent events again.
    next: Instant,
}

impl EventLines {
    /// Makes lines of the events, JSON objects, that `told` receives.
    pub(super) fn new(told: Receiver<Arc<str>>) -> Self {
        Self { told, next: Instant::now() }
    }

    /// Waits for the next event, and returns its line and those of the events that have happened by
    /// then. `None`: there will be no more events. If the caller stops waiting, no event is lost.
    pub(super) async fn next(&mut self, id: Option<u64>) -> Option<Vec<u8>> {
        if Instant::now() < self.next {
            sleep_until(self.next).await;
        }
        let mut lines = Vec::new();
        match self.told.recv().await {
            Ok(event) => push_line(&mut lines, id, "event", &event),
            Err(RecvError::Lagged(lost)) => push_line(&mut lines, id, "lost", &lost.to_string()),
            Err(RecvError::Closed) => return None,
        }
        if self.happened(&mut lines, id, BATCH_BYTES) {
            self.next = Instant::now() + PAUSE;
        }
        Some(lines)
    }

    /// Appends to `lines` the events that have happened and were not sent yet, until `lines` has
    /// `most` bytes or more. Returns whether these were all events.
    pub(super) fn happened(&mut self, lines: &mut Vec<u8>, id: Option<u64>, most: usize) -> bool {
        while lines.len() < most {
            match self.told.try_recv() {
                Ok(event) => push_line(lines, id, "event", &event),
                Err(TryRecvError::Lagged(lost)) => push_line(lines, id, "lost", &lost.to_string()),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return true,
            }
        }
        false
    }
}
