//! TCP through a link: all bytes arrive, in the time that the link needs, and each run repeats.

use onramp_smoltcp::DropReason;
use smoltcp::phy::Medium;
use smoltcp::time::Duration;

use crate::host::{data, transfer};

const LIMIT: Duration = Duration::from_secs(120);

/// Sends 12 MB through 10 Mbit/s and 20 ms each way.
fn takes_the_time_of_the_link(medium: Medium, header: u64) {
    let data = data(12_000_000);
    let link = "netem delay 20ms rate 10mbit";
    let transfer = transfer(medium, [link, link], 1, &data, LIMIT);
    assert!(transfer.received == data, "the bytes have changed");
    // Segments of 1,460 bytes of data, 40 bytes of headers, and the medium's header, and the way
    // of the handshake and the first segment: one and a half round trips.
    let frames = data.len() as u64 / 1_460 + 1;
    let bits = 8 * (data.len() as u64 + frames * (40 + header));
    let ideal = bits / 10 + 60_000;
    let took = transfer.took.total_micros();
    assert!(took >= ideal - ideal / 1_000, "{took} us are less than the link needs, {ideal} us");
    assert!(took <= ideal + ideal * 4 / 100, "{took} us, and the link needs {ideal} us");
}

#[test]
fn a_transfer_takes_the_time_of_the_link() {
    takes_the_time_of_the_link(Medium::Ip, 0);
}

#[test]
fn a_transfer_over_ethernet_takes_the_time_of_the_link() {
    takes_the_time_of_the_link(Medium::Ethernet, 14);
}

#[test]
fn a_run_with_loss_repeats_and_loses_no_byte() {
    let data = data(300_000);
    let run = |seed| {
        let link = "netem delay 5ms rate 20mbit loss 1%";
        let run = transfer(Medium::Ip, [link, "pfifo"], seed, &data, LIMIT);
        assert!(run.received == data, "TCP repeats what was lost");
        let [to, from] = [run.ends[0].sends().totals(), run.ends[1].sends().totals()];
        (run.took, to, from, run.held)
    };
    let first = run(1);
    let lost = first.1.dropped(DropReason::Impaired);
    assert!((1..20).contains(&lost), "{lost} of some 210 segments were lost");
    assert_eq!(first, run(1), "the same seed, the same run");
    assert_ne!(first, run(2), "another seed loses other segments");
}
