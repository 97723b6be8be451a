//! How a device that has room again makes a runner visit its port.

use std::sync::{Arc, OnceLock};
use std::task::Wake;

use onramp_core::{Clock, Device, DeviceWaker, Instant};
use onramp_dev::MonotonicClock;
use onramp_queue::Marks;

use super::{Rig, Runner, ThreadGroup, wake_by};
use crate::slots::{Slot, Slots, Visits};

/// The waker behind a device's [`DeviceWaker`]: requests a visit to the device's port, as soon as
/// there is a port. It owns all that such a request touches, but neither the link nor the port: a
/// thread of the device may keep it for longer than the link lives, and that thread must never be
/// the one that drops the device.
#[derive(Debug, Default)]
pub(crate) struct RoomCall(OnceLock<Place>);

#[derive(Debug)]
struct Place {
    visits: Arc<Visits>,
    marks: Arc<Marks>,
    port: usize,
    home: usize,
    runners: Arc<[Runner]>,
    threads: Arc<ThreadGroup>,
}

impl RoomCall {
    /// Gives a device its handle. Returns the handle for the device's port, and the waker behind
    /// it.
    pub(crate) fn attach(device: &mut (impl Device + ?Sized)) -> (Arc<Self>, DeviceWaker) {
        let call = Arc::<Self>::default();
        let waker = DeviceWaker::new(call.clone().into());
        device.attach(waker.clone());
        (call, waker)
    }

    /// Sets the port of the device: `slot`, which is about to be added to `slots`, with the number
    /// `port`.
    pub(crate) fn lead_to<D: Device>(
        &self,
        rig: &Rig,
        slots: &Slots<D>,
        slot: &Slot<D>,
        port: usize,
    ) {
        let place = Place {
            visits: slot.share_visits(),
            marks: slots.marks(),
            port,
            home: slot.known.home,
            runners: rig.runners.clone(),
            threads: rig.threads.clone(),
        };
        let _ = self.0.set(place);
    }

    fn request(&self, at: Instant) {
        let Some(place) = self.0.get() else { return };
        if place.visits.ask(at) {
            place.marks.set(place.port);
            wake_by(&place.runners, &place.threads, &place.visits, place.home, at);
        }
    }
}

impl Wake for RoomCall {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.request(MonotonicClock.now());
    }
}
