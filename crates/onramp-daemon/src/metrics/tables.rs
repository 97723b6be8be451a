//! The series that consist of one number for each object.

use super::Sum;
use super::text::Type;
use crate::snapshot::{Class, Qdisc, Queue, Relay, Share};

/// A family of series, and how its value is read.
pub(super) struct Table<T> {
    pub(super) name: &'static str,
    pub(super) is: Type,
    pub(super) about: &'static str,
    pub(super) value: fn(&T) -> u64,
}

const fn counter<T>(name: &'static str, about: &'static str, value: fn(&T) -> u64) -> Table<T> {
    Table { name, is: Type::Counter, about, value }
}

const fn gauge<T>(name: &'static str, about: &'static str, value: fn(&T) -> u64) -> Table<T> {
    Table { name, is: Type::Gauge, about, value }
}

pub(super) const SHARES: &[Table<Share>] = &[
    gauge(
        "onramp_fleet_share_bytes_per_second",
        "The rate of a qdisc or class that follows its share of a fleet's limit.",
        |share| share.share_bytes_per_second,
    ),
    gauge(
        "onramp_fleet_used_bytes_per_second",
        "What a qdisc or class that follows a fleet's limit sends.",
        |share| share.used_bytes_per_second,
    ),
    gauge(
        "onramp_fleet_demand_bytes_per_second",
        "What a qdisc or class that follows a fleet's limit wants to send.",
        |share| share.demand_bytes_per_second,
    ),
    gauge(
        "onramp_fleet_floor_bytes_per_second",
        "The rate that a qdisc or class has while the fleet's engine does not answer.",
        |share| share.floor_bytes_per_second,
    ),
    gauge(
        "onramp_fleet_granted",
        "1 if the ledger of the limit granted the share; 0 if the rate is the guaranteed one.",
        |share| u64::from(share.standing == "granted"),
    ),
];

pub(super) const DEVICES: &[Table<Sum>] = &[
    gauge("onramp_device_up", "1 if the device is up and takes packets, else 0.", |sum| {
        sum.up.into()
    }),
    gauge(
        "onramp_device_mtu_bytes",
        "Size of the largest packet in bytes, without its link header.",
        |sum| sum.mtu.into(),
    ),
    gauge("onramp_device_queues", "Number of transmit queues.", |sum| sum.queues as u64),
    counter(
        "onramp_device_enqueued_packets_total",
        "Packets given to qdiscs or made by them, over all queues.",
        |sum| sum.all.enqueued_packets,
    ),
    counter(
        "onramp_device_sent_packets_total",
        "Packets that the device took, over all queues.",
        |sum| sum.all.sent_packets,
    ),
    counter(
        "onramp_device_sent_bytes_total",
        "Bytes that the device took, over all queues.",
        |sum| sum.all.sent_bytes,
    ),
    gauge(
        "onramp_device_backlog_packets",
        "Packets that wait to be sent, over all queues.",
        |sum| sum.all.held_packets,
    ),
    counter("onramp_device_runs_total", "How often a thread became the owner of a queue.", |sum| {
        sum.all.runs
    }),
    counter(
        "onramp_device_helped_total",
        "How often a sender without credit became the owner of a queue.",
        |sum| sum.all.helped,
    ),
    counter("onramp_device_busy_total", "How often a queue became busy.", |sum| sum.all.busy),
    counter("onramp_device_bursts_total", "Calls that handed packets to the device.", |sum| {
        sum.all.bursts
    }),
];

pub(super) const RELAYS: &[Table<Relay>] = &[
    gauge("onramp_relay_clients", "Clients of the device's relay at present.", |relay| {
        relay.clients
    }),
    gauge("onramp_relay_clients_max", "Clients that the relay may have at a time.", |relay| {
        relay.clients_max
    }),
    counter(
        "onramp_relay_forgotten_total",
        "Clients that the relay forgot because they were idle.",
        |relay| relay.forgotten,
    ),
    counter("onramp_relay_errors_total", "Errors that the relay's sockets reported.", |relay| {
        relay.errors
    }),
    counter(
        "onramp_relay_answers_total",
        "Answers of the server that went to clients, or to the peer, which sends them.",
        |relay| relay.answers.packets,
    ),
    counter("onramp_relay_answer_bytes_total", "Bytes in these answers.", |relay| {
        relay.answers.bytes
    }),
];

pub(super) const QUEUES: &[Table<Queue>] = &[
    counter(
        "onramp_queue_enqueued_packets_total",
        "Packets given to the qdisc or made by it.",
        |queue| queue.enqueued_packets,
    ),
    counter(
        "onramp_queue_made_packets_total",
        "Packets that the qdisc made, such as duplicates of netem; they also count as enqueued.",
        |queue| queue.made_packets,
    ),
    counter(
        "onramp_queue_sent_packets_total",
        "Packets that the device took from the queue.",
        |queue| queue.sent_packets,
    ),
    counter(
        "onramp_queue_sent_bytes_total",
        "Bytes that the device took from the queue.",
        |queue| queue.sent_bytes,
    ),
    gauge("onramp_backlog_packets", "Packets that wait to be sent.", |queue| queue.held_packets),
];

/// The series that qdiscs and classes have in common.
macro_rules! traffic {
    ($of:ty, $what:literal) => {
        &[
            counter(
                concat!("onramp_", $what, "_sent_bytes_total"),
                concat!("Bytes that left the ", $what, "."),
                |it: &$of| it.traffic.sent_bytes,
            ),
            counter(
                concat!("onramp_", $what, "_sent_packets_total"),
                concat!("Packets that left the ", $what, "."),
                |it: &$of| it.traffic.sent_packets,
            ),
            counter(
                concat!("onramp_", $what, "_drops_total"),
                concat!("Packets dropped in the ", $what, " or below it."),
                |it: &$of| it.traffic.dropped_packets,
            ),
            counter(
                concat!("onramp_", $what, "_overlimits_total"),
                concat!("How often the ", $what, " delayed packets or reached a limit."),
                |it: &$of| it.traffic.overlimits,
            ),
            counter(
                concat!("onramp_", $what, "_requeues_total"),
                "Packets that the device did not accept at the first attempt.",
                |it: &$of| it.traffic.requeues,
            ),
            gauge(
                concat!("onramp_", $what, "_backlog_bytes"),
                concat!("Bytes that wait in the ", $what, "."),
                |it: &$of| it.traffic.backlog_bytes,
            ),
            gauge(
                concat!("onramp_", $what, "_backlog_packets"),
                concat!("Packets that wait in the ", $what, "."),
                |it: &$of| it.traffic.backlog_packets,
            ),
        ]
    };
}

pub(super) const QDISCS: &[Table<Qdisc>] = traffic!(Qdisc, "qdisc");

pub(super) const CLASSES: &[Table<Class>] = traffic!(Class, "class");
