//! Errors that the kernel returns, and what the queue then does with the packets.

use libc::{EAGAIN, ECONNREFUSED, EINTR, EINVAL, EIO, EMSGSIZE, ENOBUFS};

use super::Answer::{Fail, Take};
use super::*;

#[test]
fn a_full_socket_keeps_the_rest_and_is_asked_ever_less_often() {
    let mut queue = queue([Take(1), Fail(EAGAIN)].into_iter().chain(vec![Fail(EAGAIN); 6]));
    let mut burst = run(&[10, 20, 30]);
    let (done, out) = transmit(&mut queue, &mut burst);
    assert_eq!((done, wait_us(&out)), (vec![(0, None)], Some(50)));
    let waits: Vec<_> = (0..6).map(|_| wait_us(&transmit(&mut queue, &mut burst).1)).collect();
    assert_eq!(waits, [100, 200, 400, 800, 1_000, 1_000].map(Some));
    assert_eq!(queue.stats.eagain.get(), 7);
    let (done, out) = transmit(&mut queue, &mut burst);
    assert_eq!((done, out.retry_at), (vec![(1, None), (2, None)], None));
    queue.wire.answers = [Fail(EAGAIN)].into();
    assert_eq!(wait_us(&transmit(&mut queue, &mut run(&[1])).1), Some(50), "from the start");
}

#[test]
fn a_call_that_takes_nothing_and_says_nothing_is_a_full_socket() {
    let mut queue = queue([Take(0)]);
    let mut burst = run(&[10]);
    let (_, out) = transmit(&mut queue, &mut burst);
    assert_eq!((wait_us(&out), out.calls), (Some(50), 1));
}

#[test]
fn want_of_memory_is_waited_for_eight_times() {
    let mut queue = queue(vec![Fail(ENOBUFS); 8]);
    let mut burst = run(&[10, 20]);
    for wait in [50, 100, 200, 400, 800, 1_000, 1_000] {
        let (done, out) = transmit(&mut queue, &mut burst);
        assert_eq!((done, wait_us(&out)), (vec![], Some(wait)));
    }
    let (done, _) = transmit(&mut queue, &mut burst);
    assert_eq!(done, [(0, Some(DropReason::NoBuffers)), (1, None)]);
    assert_eq!(queue.stats.enobufs.get(), 8);
}

#[test]
fn every_packet_has_its_own_eight_times() {
    // The kernel refuses the first two packets eight times each, for lack of memory, so the queue
    // drops them. It refuses the third packet seven times, and takes it at the eighth and last
    // attempt.
    let mut queue = queue(vec![Fail(libc::ENOMEM); 8 * 2 + 7]);
    let mut burst = run(&[10, 20, 30]);
    let mut fates = Fates::new();
    let mut calls = 0;
    while !burst.is_empty() {
        let (done, out) = transmit(&mut queue, &mut burst);
        fates.extend(done);
        calls += out.calls;
    }
    let dropped = Some(DropReason::NoBuffers);
    assert_eq!(reasons(&fates), [dropped, dropped, None]);
    assert_eq!(calls, 8 * 2 + 7 + 1);
}

#[test]
fn what_is_sent_in_between_starts_the_count_anew() {
    let seven = || vec![Fail(ENOBUFS); 7];
    let mut queue = queue(seven().into_iter().chain([Take(1)]).chain(seven()));
    let mut burst = run(&[10, 20]);
    for _ in 0..7 {
        assert_eq!(transmit(&mut queue, &mut burst).0, []);
    }
    assert_eq!(transmit(&mut queue, &mut burst).0, [(0, None)]);
    for _ in 0..6 {
        assert_eq!(transmit(&mut queue, &mut burst).0, []);
    }
    assert_eq!(transmit(&mut queue, &mut burst).0, [(1, None)]);
}

#[test]
fn memory_for_single_datagrams_may_be_there() {
    let mut queue = queue([Fail(ENOBUFS)]);
    let (done, out) = transmit(&mut queue, &mut run(&[100; 10]));
    assert_eq!(reasons(&done), vec![None; 10]);
    assert_eq!((out.calls, out.messages), (2, 10));
    assert_eq!(queue.stats.gso_off.get(), 0);
}

#[test]
fn signals_delay_but_not_for_ever() {
    let mut queue = queue(vec![Fail(EINTR); 16]);
    let (done, out) = transmit(&mut queue, &mut run(&[10]));
    assert_eq!((done, out.calls), (vec![(0, None)], 17));
    queue.wire.answers = vec![Fail(EINTR); 17].into();
    let (done, out) = transmit(&mut queue, &mut run(&[10]));
    assert_eq!((done, wait_us(&out)), (vec![], Some(50)));
}

#[test]
fn the_error_of_an_earlier_packet_is_not_held_against_the_next() {
    for errno in [ECONNREFUSED, EMSGSIZE, libc::EHOSTUNREACH, libc::ENOPROTOOPT] {
        let mut queue = queue([Fail(errno)]);
        let (done, out) = transmit(&mut queue, &mut run(&[10, 20]));
        assert_eq!((reasons(&done), out.calls), (vec![None, None], 2));
        assert_eq!(queue.stats.earlier_errors.get(), 1);
    }
}

#[test]
fn errors_of_earlier_packets_are_told_apart() {
    let mut queue = queue([Fail(ECONNREFUSED), Take(1), Fail(ECONNREFUSED), Take(1)]);
    let (done, _) = transmit(&mut queue, &mut run(&[10, 20]));
    assert_eq!(reasons(&done), [None, None]);
    assert_eq!(queue.stats.earlier_errors.get(), 2);
}

#[test]
fn an_error_twice_is_the_packets_own() {
    let reasons_of = [
        (EMSGSIZE, DropReason::MessageSize),
        (ECONNREFUSED, DropReason::Refused),
        (libc::ENETUNREACH, DropReason::Unreachable),
        (libc::EHOSTUNREACH, DropReason::Unreachable),
        (libc::ENETDOWN, DropReason::Unreachable),
        (libc::EHOSTDOWN, DropReason::Unreachable),
        (libc::ENONET, DropReason::Unreachable),
        (libc::EADDRNOTAVAIL, DropReason::Unreachable),
        (libc::EPERM, DropReason::NoPermission),
        (libc::EACCES, DropReason::NoPermission),
        (EINVAL, DropReason::DeviceError),
        (libc::EAFNOSUPPORT, DropReason::DeviceError),
        (libc::EPIPE, DropReason::DeviceError),
        (EIO, DropReason::DeviceError),
    ];
    for (errno, reason) in reasons_of {
        let mut queue = queue([Take(1), Fail(errno), Fail(errno)]);
        let (done, out) = transmit(&mut queue, &mut run(&[10, 20, 30]));
        assert_eq!(reasons(&done), [None, Some(reason), None], "errno {errno}");
        assert_eq!((out.calls, out.messages), (4, 2));
        assert_eq!(queue.stats.earlier_errors.get(), 0);
        assert_eq!(queue.wire.datagrams(), [payload(0, 10), payload(2, 30)]);
    }
}

#[test]
fn the_second_error_decides() {
    let mut queue = queue([Fail(ECONNREFUSED), Fail(EMSGSIZE)]);
    let (done, _) = transmit(&mut queue, &mut run(&[10]));
    assert_eq!(reasons(&done), [Some(DropReason::MessageSize)]);
}

#[test]
fn the_fate_of_a_message_is_that_of_its_packets() {
    let mut queue = queue([Fail(libc::EPERM), Fail(libc::EPERM)]);
    let (done, _) = transmit(&mut queue, &mut run(&[100, 100, 100, 7, 50]));
    let dropped = Some(DropReason::NoPermission);
    assert_eq!(reasons(&done), [dropped, dropped, dropped, dropped, None]);
}

#[test]
fn the_datagrams_of_a_message_too_large_are_judged_one_by_one() {
    let mut queue = queue([]);
    queue.wire.refuse = Some((|view| view.payload.len() > 1_000, EMSGSIZE));
    let (done, _) = transmit(&mut queue, &mut run(&[1_200, 1_200, 900, 10, 10]));
    let dropped = Some(DropReason::MessageSize);
    assert_eq!(reasons(&done), [dropped, dropped, None, None, None]);
    assert_eq!(queue.wire.datagrams(), [payload(2, 900), payload(3, 10), payload(4, 10)]);
    let stats = &queue.stats;
    assert_eq!((stats.gso_fallbacks.get(), stats.gso_off.get()), (1, 0));
    assert_eq!((stats.gso_messages.get(), stats.segments.get()), (1, 3));
}

#[test]
fn segmentation_that_never_works_is_given_up() {
    for errno in [EINVAL, EIO] {
        let mut queue = queue([]);
        queue.wire.refuse = Some((|view| view.segment.is_some(), errno));
        for round in 1..=STRIKES_MAX + 2 {
            let (done, _) = transmit(&mut queue, &mut run(&[100; 5]));
            assert_eq!(reasons(&done), vec![None; 5]);
            assert_eq!(queue.stats.gso_off.get(), u64::from(round >= STRIKES_MAX));
        }
        assert_eq!(queue.stats.gso_fallbacks.get(), STRIKES_MAX.into());
        assert_eq!(queue.builder().segments_max, 1);
    }
}

#[test]
fn a_path_too_narrow_for_a_segment_is_no_reason_to_give_up() {
    let mut queue = queue([]);
    queue.wire.refuse = Some((|view| view.segment.is_some(), EMSGSIZE));
    for _ in 0..STRIKES_MAX * 2 {
        let (done, _) = transmit(&mut queue, &mut run(&[100; 2]));
        assert_eq!(reasons(&done), [None, None]);
    }
    let stats = &queue.stats;
    assert_eq!((stats.gso_fallbacks.get(), stats.gso_off.get()), (u64::from(STRIKES_MAX) * 2, 0));
}

#[test]
fn a_refused_message_counts_once_however_its_datagrams_go_out() {
    let mut queue = queue([Fail(EINVAL)].into_iter().chain(vec![Take(1); 9]));
    let (done, _) = transmit(&mut queue, &mut run(&[100; 9]));
    assert_eq!((reasons(&done), queue.stats.gso_off.get()), (vec![None; 9], 0));
}

#[test]
fn segmentation_that_works_at_times_is_kept() {
    let mut queue = queue([]);
    queue.wire.refuse = Some((|view| view.segment == Some(2_000), EINVAL));
    for _ in 0..STRIKES_MAX * 2 {
        transmit(&mut queue, &mut run(&[2_000; 3]));
        transmit(&mut queue, &mut run(&[100; 3]));
    }
    assert_eq!(queue.stats.gso_off.get(), 0);
}

/// Only refusals in a row make the queue stop segmenting: when the kernel takes a segmented
/// message, the count starts again.
#[test]
fn refusals_are_counted_from_the_last_message_taken() {
    let mut queue = queue([]);
    queue.wire.refuse = Some((|view| view.segment == Some(2_000), EINVAL));
    for _ in 0..2 {
        for _ in 1..STRIKES_MAX {
            transmit(&mut queue, &mut run(&[2_000; 3]));
        }
        assert_eq!(queue.stats.gso_off.get(), 0, "one less than it takes");
        transmit(&mut queue, &mut run(&[100; 3]));
    }
    for strike in 1..=STRIKES_MAX {
        transmit(&mut queue, &mut run(&[2_000; 3]));
        assert_eq!(queue.stats.gso_off.get(), u64::from(strike == STRIKES_MAX));
    }
}

#[test]
fn segmentation_is_not_blamed_for_a_bad_destination() {
    let mut queue = queue([]);
    queue.wire.refuse = Some((|_| true, EINVAL));
    for _ in 0..STRIKES_MAX * 2 {
        let (done, _) = transmit(&mut queue, &mut run(&[100; 3]));
        assert_eq!(reasons(&done), [Some(DropReason::DeviceError); 3]);
    }
    assert_eq!(queue.stats.gso_off.get(), 0);
}
