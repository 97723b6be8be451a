//! Devices with trees, and pairs of devices, under the real smoltcp and in virtual time.

mod ce;
mod conserve;
mod host;
mod queues;
mod shaped;
mod transfer;
