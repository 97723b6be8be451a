//! What active queue management does for TCP, measured in virtual time.

use smoltcp::phy::Medium;
use smoltcp::time::Duration;

use crate::host::{Transfer, data, transfer};

/// Lets TCP send through a bottleneck of 10 Mbit/s for 3 s, with a qdisc in front of it.
fn behind(qdisc: &str) -> Transfer {
    let bottleneck = if qdisc == "cake" {
        "cake bandwidth 10mbit".to_owned()
    } else {
        format!(
            "qdisc add dev eth0 root handle 1: htb default 10
             class add dev eth0 parent 1: classid 1:10 htb rate 10mbit burst 1600b cburst 1600b
             qdisc add dev eth0 parent 1:10 {qdisc}"
        )
    };
    let data = data(5_000_000);
    transfer(Medium::Ip, [&bottleneck, "netem delay 20ms"], 1, &data, Duration::from_secs(3))
}

#[test]
fn a_managed_queue_stays_short() {
    let full = behind("pfifo limit 1000");
    // The socket's buffer of 1 MB stands in the queue, which is 0.8 s.
    assert!(full.mean_held() > 300_000, "{}", full.mean_held());
    for qdisc in ["fq_codel", "cake"] {
        let managed = behind(qdisc);
        let (long, short) = (full.mean_held(), managed.mean_held());
        assert!(short < long / 8, "{qdisc} holds {short} bytes, pfifo {long}");
        // 10 Mbit/s for 3 s are 3.75 MB with headers.
        let (got, all) = (managed.received.len(), full.received.len());
        assert!(got > all * 3 / 4, "{qdisc} carries {got} bytes, pfifo {all}");
    }
}
