//! Compares the gate (a byte that says whether a link is closed or changed) with four booleans,
//! under every sequence of five changes.

use onramp_queue::Gate;

/// Returns the answers of all questions that a gate can be asked, in a fixed order.
fn asked(gate: &Gate) -> [bool; 6] {
    [
        gate.is_open(),
        gate.has_changed(),
        gate.is_closed(),
        gate.has_closed_since(),
        gate.is_one(),
        gate.is_shut(),
    ]
}

#[test]
fn a_gate_knows_what_was_done_to_it() {
    const STEPS: u32 = 5;
    for sequence in 0..STEPS.pow(STEPS) {
        let gate = Gate::default();
        let (mut change, mut closed, mut one, mut shut) = (false, false, false, false);
        for step in 0..STEPS {
            match sequence / STEPS.pow(step) % STEPS {
                0 => {
                    gate.note_change();
                    change = true;
                }
                1 => {
                    gate.close();
                    closed = true;
                }
                2 => {
                    gate.shut();
                    shut = true;
                }
                3 => {
                    gate.set_one(true);
                    one = true;
                }
                _ => {
                    gate.set_one(false);
                    one = false;
                }
            }
            let changed = change || closed || shut;
            let expected = [!changed && !one, changed, closed, closed, one, shut];
            assert_eq!(asked(&gate), expected, "step {step} of {sequence}");
        }
    }
}
