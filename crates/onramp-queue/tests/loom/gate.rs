//! Models of the gate (a byte that says whether a link is closed). One thread changes the gate and
//! then looks at the ports. Another thread adds a port or leaves a packet in a port, and then looks
//! at the gate. At least one of the two threads notices what the other did.

use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::{Acquire, Release};
use onramp_queue::{Gate, Intake, Owner};

use crate::{check, spawn};

/// One thread adds a port while another thread closes the gate. The closing thread finds the new
/// port, or the adding thread finds the gate closed, or both.
///
/// Must fail with each of these mutants: gate-close-unfenced, gate-look-unfenced.
#[test]
fn a_close_meets_a_new_place() {
    check(3, || {
        let (gate, places) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(1)));
        let adder = spawn({
            let (gate, places) = (gate.clone(), places.clone());
            move || {
                // Release: pairs with the acquire load of `places` by the thread that closes the
                // gate. A link publishes a new port in the same way.
                places.store(2, Release);
                gate.has_closed_since()
            }
        });
        gate.close();
        let found = places.load(Acquire) == 2;
        assert!(adder.join().unwrap() || found, "a place that nobody closes");
    });
}

/// Takes the packets that the last owner left in the port; the port's value is their number.
/// Returns false if there are none, or if another thread owns the port.
fn sweep(port: &Intake<u32>) -> bool {
    port.own().is_some_and(|mut owner: Owner<'_, u32>| {
        let left = std::mem::take(&mut *owner);
        assert!(owner.leave_idle().is_ok(), "nobody pushes");
        left > 0
    })
}

/// An owner leaves a packet in a port while another thread shuts the gate (from then on, no runner
/// visits the ports). The shutting thread then looks at the port, and the owner looks at the gate.
/// Exactly one of the two takes the packet.
///
/// Must fail with each of these mutants: gate-shut-unfenced, gate-is-shut-unfenced.
#[test]
fn a_shut_meets_a_late_packet() {
    check(3, || {
        let (gate, port) = (Arc::new(Gate::default()), Arc::new(Intake::new(0, 8, 8)));
        let mut owner = port.own().expect("nobody owns it");
        let closer = spawn({
            let (gate, port) = (gate.clone(), port.clone());
            move || {
                gate.shut();
                sweep(&port)
            }
        });
        *owner += 1;
        owner.leave_busy();
        let mine = gate.is_shut() && sweep(&port);
        assert!(closer.join().unwrap() ^ mine, "one of them takes it");
    });
}
