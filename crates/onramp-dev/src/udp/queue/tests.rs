//! Tests of the queue against a simulated kernel that follows a script.

mod errors;
mod lent;
mod messages;
mod property;

use std::collections::VecDeque;

use onramp_queue::Packet;

use super::super::route::Route;
use super::*;
use crate::sys::View;

/// An answer of the simulated kernel to one call. If no scripted answer is left, the kernel takes
/// all messages.
#[derive(Clone, Debug)]
enum Answer {
    Take(usize),
    Fail(c_int),
}

type Refuses = fn(&View) -> bool;

#[derive(Debug, Default)]
struct Script {
    answers: VecDeque<Answer>,
    /// Messages that the simulated kernel took.
    taken: Vec<View>,
    /// A function that selects messages that are always refused, whatever the script says, and the
    /// error number of the refusal.
    refuse: Option<(Refuses, c_int)>,
}

impl Wire for Script {
    fn send(&mut self, messages: &mut Messages) -> Result<usize, c_int> {
        let views = messages.views();
        assert!(!views.is_empty(), "a call has messages");
        let mut count = match self.answers.pop_front() {
            Some(Answer::Fail(errno)) => return Err(errno),
            Some(Answer::Take(count)) => count.min(views.len()),
            None => views.len(),
        };
        if let Some((refuses, errno)) = self.refuse
            && let Some(at) = views[..count].iter().position(refuses)
        {
            if at == 0 {
                return Err(errno);
            }
            count = at;
        }
        self.taken.extend_from_slice(&views[..count]);
        Ok(count)
    }
}

impl Script {
    fn datagrams(&self) -> Vec<Vec<u8>> {
        self.taken.iter().flat_map(View::datagrams).collect()
    }
}

const NOW: Instant = Instant(1_000_000);

fn queue(answers: impl IntoIterator<Item = Answer>) -> Queue<Script> {
    queue_on(Route::new(false, None, 0, 0), answers)
}

fn queue_on(route: Route, answers: impl IntoIterator<Item = Answer>) -> Queue<Script> {
    let builder = Builder { route, txtime: false, segments_max: 64 };
    let script = Script { answers: answers.into_iter().collect(), ..Script::default() };
    Queue::new(script, builder, Arc::default())
}

/// Makes packets of one flow with the given lengths. Each word of a payload encodes the packet's
/// number and the word's position.
fn run(lens: &[usize]) -> PacketList {
    let packet = |(number, &len): (usize, &usize)| {
        let mut pkt = Packet::with_payload(&payload(number, len));
        pkt.cookie = number as u64;
        pkt
    };
    lens.iter().enumerate().map(packet).collect()
}

fn payload(number: usize, len: usize) -> Vec<u8> {
    let mut payload = vec![0; len];
    for (at, chunk) in payload.chunks_mut(4).enumerate() {
        let word = (at * 4_096 + number).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    payload
}

type Fates = Vec<(u64, Option<DropReason>)>;

/// Calls `transmit` once. Returns the packets that the device has finished (sent or dropped), and
/// the device's answer. The other packets stay in `burst`.
fn transmit(queue: &mut Queue<Script>, burst: &mut PacketList) -> (Fates, Transmitted) {
    let before: Vec<_> = cookies(burst);
    let mut done = PacketList::new();
    let out = queue.transmit(burst, &mut done, NOW);
    let done: Fates = done.map(|pkt| (pkt.cookie, pkt.drop_reason)).collect();
    let after = done.iter().map(|&(cookie, _)| cookie).chain(cookies(burst));
    assert!(after.eq(before), "every packet once, in order");
    assert_eq!(out.retry_at.is_some(), !burst.is_empty());
    (done, out)
}

/// Returns the cookies of the packets in `list`, in order.
fn cookies(list: &mut PacketList) -> Vec<u64> {
    let packets: Vec<_> = list.by_ref().collect();
    let cookies = packets.iter().map(|pkt| pkt.cookie).collect();
    list.extend(packets);
    cookies
}

fn reasons(fates: &Fates) -> Vec<Option<DropReason>> {
    fates.iter().map(|&(_, reason)| reason).collect()
}

fn wait_us(out: &Transmitted) -> Option<u64> {
    out.retry_at.map(|at| at.since(NOW) / 1_000)
}
