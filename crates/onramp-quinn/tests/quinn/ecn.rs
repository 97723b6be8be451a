//! Marks of qdiscs reach quinn's congestion control.

use onramp::Credits;
use onramp_quinn::Options;

use crate::common::{client, connect, drops, exchange, run, server, socket};

/// `cake` marks packets that wait too long, in place of dropping them. Credits of 64 KiB make a
/// queue of 100 ms at 5 Mbit/s, which a crowded machine reaches, too, sooner or later.
#[test]
fn marks_slow_quinn_down_without_loss() {
    run(async {
        let credits = Credits { packets: 1_000, bytes: 64 << 10 };
        let options = Options { credits, ..Options::default() };
        let sockets = [(); 2].map(|()| socket("127.0.0.1:0", "cake bandwidth 5mbit", options));
        let (server, client) = (server(&sockets[0]), client(&sockets[1]));
        let addr = server.local_addr().expect("an address");
        let (at_server, at_client) = connect(&server, &client, addr).await;
        for _ in 0..40 {
            exchange(&at_server, &at_client, 256 << 10).await;
            if at_server.stats().path.congestion_events > 0 {
                break;
            }
        }
        let path = at_server.stats().path;
        assert!(path.congestion_events > 0, "{path:?}");
        assert_eq!(drops(&sockets[0].link().stats()), 0);
    });
}
