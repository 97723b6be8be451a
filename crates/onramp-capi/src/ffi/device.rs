//! Devices whose transmit queue is a callback of C.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use onramp::{DeviceInfo, DropReason, Instant, Packet, PacketList, Transmitted};

use super::memory::optional_text;
use crate::abi::{ONRAMP_NEVER_BLOCKS, Pkt};
use crate::error::{Error, Result};
use crate::shaper::{self, shown};

/// When the link offers packets again that the callback did not take and gave no time for, ns.
const RETRY_NS: u64 = 1_000_000;

thread_local! {
    /// How many callbacks this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Refuses a call that waits for a link, if this thread is in a callback of a device: the link may
/// wait for the callback.
pub(super) fn refuse_inside() -> Result<()> {
    if DEPTH.get() == 0 {
        return Ok(());
    }
    let text = "a callback of a device cannot wait for a link: make the call after it has returned";
    Err(Error::new(libc::EDEADLK, text))
}

/// Calls `f`, which calls back into C.
fn inside<R>(f: impl FnOnce() -> R) -> R {
    DEPTH.set(DEPTH.get() + 1);
    let result = f();
    DEPTH.set(DEPTH.get() - 1);
    result
}

/// A device of the caller's: a transmit queue, such as one of a TAP, of AF_XDP or of virtio.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// `sizeof(onramp_device)`: later versions add fields at the end.
    pub size: u32,
    /// Largest packet, link header included, bytes. Not 0: qdiscs derive their quantum from it.
    pub mtu: u32,
    /// `ONRAMP_NEVER_BLOCKS`.
    pub flags: u32,
    /// Set to 0.
    pub reserved: u32,
    /// Name for listings; NULL: "device". Copied.
    pub name: *const c_char,
    /// Passed to the callbacks.
    pub user: *mut c_void,
    /// Sends packets `0..n` (at most 64), whose bytes are `payloads[i]`, and returns how many it is
    /// done with, from the first on. A packet that failed counts as done, with its `drop_reason`
    /// set. If it takes fewer than `n`, the link offers the others again at `*retry_at` (ns of
    /// CLOCK_MONOTONIC; 1 ms later if it is left alone). `now` is the time at which the calling
    /// thread last read that clock. The arrays and the bytes are the library's, and end with the
    /// call.
    ///
    /// One thread at a time calls it, but any: a thread that sends or waits, one that calls
    /// `onramp_link_run`, or one of the library's. It must return: no longjmp, no exception. It
    /// should not block. Inside, the calls of the library that wait for a link, and
    /// `onramp_link_run`, give -EDEADLK, and those that use the sender whose call is going on give
    /// -EBUSY. If it returns more than `n`, all `n` packets are dropped
    /// (`ONRAMP_DROP_DEVICE_ERROR`); an unknown `drop_reason` means the same.
    pub transmit: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            pkts: *mut Pkt,
            payloads: *const libc::iovec,
            n: usize,
            now: u64,
            retry_at: *mut u64,
        ) -> usize,
    >,
    /// Called once, after the last call of `transmit`; may be NULL. If no link could be made of the
    /// device, it is not called. Same rules.
    pub free: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

/// The type of `onramp_device.transmit`.
type Transmit =
    unsafe extern "C" fn(*mut c_void, *mut Pkt, *const libc::iovec, usize, u64, *mut u64) -> usize;
/// The type of `onramp_device.free`.
type Free = unsafe extern "C" fn(*mut c_void);

/// The callbacks of a device, and their argument.
#[derive(Debug)]
struct Callbacks {
    user: *mut c_void,
    transmit: Transmit,
    free: Option<Free>,
    /// Whether the device belongs to a link. If not, it stays the caller's, who frees it.
    taken: Arc<AtomicBool>,
}

// SAFETY: the caller of `onramp_link_devices` has promised that any thread may call the callbacks
// with `user`, one at a time.
unsafe impl Send for Callbacks {}

impl Drop for Callbacks {
    fn drop(&mut self) {
        // Acquire: the thread that made the link has set all up.
        if let Some(free) = self.free.filter(|_| self.taken.load(Acquire)) {
            // SAFETY: the caller has promised that `free` may be called with `user`, once, after
            // the last call of `transmit`; a device that is dropped transmits no more.
            inside(|| unsafe { free(self.user) });
        }
    }
}

/// A device of the caller's.
#[derive(Debug)]
pub(super) struct Called {
    info: DeviceInfo,
    callbacks: Callbacks,
    /// The packets that are offered in a call of `transmit`; otherwise empty.
    offered: Vec<Packet>,
}

impl Called {
    /// Makes a device. Its `free` is called only if `taken` is true when it is dropped.
    ///
    /// # Safety
    ///
    /// The callbacks may be called as `onramp_device` says, and `name` is null or ends with a zero
    /// byte.
    pub(super) unsafe fn new(device: &Device, taken: &Arc<AtomicBool>) -> Result<Self> {
        if device.size as usize != size_of::<Device>() {
            let text = format!(
                "size is {}; expected {}, sizeof(onramp_device) of ABI {}",
                device.size,
                size_of::<Device>(),
                crate::abi::ONRAMP_ABI
            );
            return Err(Error::invalid(text));
        }
        let Some(transmit) = device.transmit else {
            return Err(Error::invalid("transmit is NULL"));
        };
        if device.mtu == 0 {
            let text = "mtu is 0; expected the length of the largest packet, such as 1514";
            return Err(Error::invalid(text));
        }
        if device.flags & !ONRAMP_NEVER_BLOCKS != 0 || device.reserved != 0 {
            let text = format!(
                "flags is {:#x} and reserved is {}; expected ONRAMP_NEVER_BLOCKS or 0, and 0",
                device.flags, device.reserved
            );
            return Err(Error::invalid(text));
        }
        // SAFETY: as the caller promises.
        let name = unsafe { optional_text(device.name, "name") }?.unwrap_or("device");
        let info = DeviceInfo::new(name.to_owned(), device.mtu);
        let never_blocks = device.flags & ONRAMP_NEVER_BLOCKS != 0;
        let info = if never_blocks { info.never_blocks() } else { info };
        let Device { user, free, .. } = *device;
        let callbacks = Callbacks { user, transmit, free, taken: Arc::clone(taken) };
        Ok(Self { info, callbacks, offered: Vec::new() })
    }
}

/// Says that devices belong to a link from now on.
pub(super) fn take(taken: &AtomicBool) {
    // Release: a thread that drops a device sees all that was done before.
    taken.store(true, Release);
}

impl onramp::Device for Called {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        self.offered.extend(std::mem::take(burst));
        let count = self.offered.len();
        let mut pkts: Vec<Pkt> = self.offered.iter().map(shown).collect();
        let mut payloads: Vec<_> = self.offered.iter_mut().map(part).collect();
        let mut retry_at = now.after(RETRY_NS).0;
        let Callbacks { user, transmit, .. } = self.callbacks;
        let (pkts_at, parts_at) = (pkts.as_mut_ptr(), payloads.as_mut_ptr().cast_const());
        let (now, again) = (now.0, &raw mut retry_at);
        // SAFETY: the caller has promised that `transmit` may be called so; the arrays have `count`
        // elements and outlive the call.
        let taken = inside(|| unsafe { transmit(user, pkts_at, parts_at, count, now, again) });
        // A number that cannot be says nothing of any packet.
        let lies = taken > count;
        let taken = taken.min(count);
        for (at, mut packet) in self.offered.drain(..).enumerate() {
            if at < taken {
                let number = pkts[at].drop_reason;
                let unknown = (lies || number != 0).then_some(DropReason::DeviceError);
                packet.drop_reason = shaper::reason(number).filter(|_| !lies).or(unknown);
                done.push_back(packet);
            } else {
                burst.push_back(packet);
            }
        }
        let messages = u32::try_from(taken).unwrap_or(u32::MAX);
        let retry_at = (taken < count).then_some(Instant(retry_at));
        Transmitted { calls: 1, messages, retry_at }
    }
}

/// Returns where the bytes of a packet are.
fn part(packet: &mut Packet) -> libc::iovec {
    let payload = packet.payload_mut();
    libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() }
}
