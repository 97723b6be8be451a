//! Foreign code that the link runs, and that calls the link itself: conversions, devices, and
//! destructors of thread-local values. Whatever the thread that runs this code is doing at the
//! moment, it never waits for itself.

use onramp::dev::Null;
use onramp::{Device, Line, Link};

use crate::common::in_time;

fn null() -> Box<dyn Device> {
    Box::new(Null::default())
}

/// A line of `tc` that reads the link when it is converted.
struct Reads(Link);

impl From<Reads> for Line {
    fn from(Reads(link): Reads) -> Self {
        let _ = link.setup();
        link.change("qdisc replace dev link root pfifo").expect("it can be done");
        Self::from("qdisc replace dev link root fq")
    }
}

/// The conversion of a line of `tc` reads and changes the link.
#[test]
fn a_conversion_calls_the_link() {
    in_time(|| {
        let link = Link::devices([null()]).build().unwrap();
        link.change(Reads(link.clone())).unwrap();
        assert_eq!(link.setup().root_id(), Some("fq"), "the line comes after its conversion");
    });
}
