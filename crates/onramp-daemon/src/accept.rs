//! What the log says about a listener at which `accept` fails, for example because no file
//! descriptor is left.

use std::io;

use tracing::{info, warn};

/// Whether a listener accepts clients. It logs each change once: while `accept` fails, the daemon
/// tries it again ten times a second, and a line for each attempt would fill the log.
#[derive(Debug)]
pub(crate) struct Accepting {
    /// Who connects to this listener, for the log.
    clients: &'static str,
    is_failing: bool,
}

impl Accepting {
    pub(crate) const fn new(clients: &'static str) -> Self {
        Self { clients, is_failing: false }
    }

    /// Takes note that `accept` has failed, and logs that unless the attempt before failed, too.
    pub(crate) fn failed(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            warn!("cannot accept {}: {error}; they wait until the daemon can", self.clients);
        }
    }

    /// Takes note that `accept` has succeeded, and logs that if the attempt before failed.
    pub(crate) fn succeeded(&mut self) {
        if std::mem::replace(&mut self.is_failing, false) {
            info!("accepts {} again", self.clients);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};

    use super::*;

    /// Collects the messages of the log.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Visit for Log {
        fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
            self.0.lock().expect("no panic").push(format!("{value:?}"));
        }
    }

    impl tracing::Subscriber for Log {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut self.clone());
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// The log says once that `accept` fails, however often it does, and once that it works again.
    #[test]
    fn each_change_is_logged_once() {
        let log = Log::default();
        let _here = tracing::subscriber::set_default(log.clone());
        let mut accepting = Accepting::new("clients");
        let said = || std::mem::take(&mut *log.0.lock().expect("no panic"));
        accepting.succeeded();
        assert_eq!(said(), [""; 0]);
        for _ in 0..2 {
            let full = io::Error::from_raw_os_error(24);
            (0..5).for_each(|_| accepting.failed(&full));
            let failed = "cannot accept clients: Too many open files (os error 24); they wait \
                          until the daemon can";
            assert_eq!(said(), [failed]);
            (0..5).for_each(|_| accepting.succeeded());
            assert_eq!(said(), ["accepts clients again"]);
        }
    }
}
