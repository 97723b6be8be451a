//! Commands of `tc` on a single link, in which the device need not be named.

use onramp_core::{Change, Kinds};

use onramp::{Line, Link};

use super::{Target, Targets, TcError, run};
use crate::configured::Configured;

/// A single link or tree, which is the only device that commands may name.
struct One<'a>(Target<'a>);

impl Targets for One<'_> {
    fn target(&self, name: &str) -> Option<Target<'_>> {
        self.targets().into_iter().find(|target| target.name == name)
    }

    fn targets(&self) -> Vec<Target<'_>> {
        let Target { name, tree, mtu, deaf, followers } = self.0;
        vec![Target { name, tree, mtu, deaf, followers }]
    }

    fn kinds(&self) -> Kinds {
        self.0.tree.setup().kinds().clone()
    }

    fn changed(&mut self, _name: &str, _line: &str, _change: &Change) {}
}

/// Carries out a command of `tc` on a link that belongs to no [`Host`](crate::Host), and returns
/// what `tc` would print. The command need not name a device, because there is only one. That
/// device is called `link`, unless the `tc` lines with which the link was built gave it another
/// name.
///
/// Use this function to change or list the link's qdiscs, classes and filters. A change takes
/// effect while other threads send.
///
/// ```
/// use onramp::{Link, cmd, dev};
/// use onramp_host::tc;
///
/// let link = Link::devices([Box::new(dev::Null::default()) as _]).build()?;
/// tc(&link, "qdisc replace root handle 1: fq limit 1000")?;
/// tc(&link, cmd::Qdisc::change("fq").root().option("flow_limit", 50_u32))?;
/// let shown = tc(&link, "qdisc show")?;
/// assert!(shown.starts_with("qdisc fq 1: root refcnt 2 limit 1000p flow_limit 50p "));
/// let error = tc(&link, "qdisc add root fq").unwrap_err();
/// assert_eq!(error.to_string(), r#"qdisc: "root": 1: is there already; use replace"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`TcError`]: the command cannot be understood or carried out, or a port did not make the change.
pub fn tc(link: &Link, command: impl Into<Line>) -> Result<String, TcError> {
    on_one(link, "link", None, command.into())
}

/// Carries out a command on the only device, which is called `name` if its tree has no name for it.
/// `mtu` is the size of the largest packet, or `None` if the description of the tree has it.
pub(super) fn on_one(
    tree: &dyn Configured,
    name: &str,
    mtu: Option<u32>,
    command: Line,
) -> Result<String, TcError> {
    let setup = tree.setup();
    let name = setup.device().unwrap_or(name).to_owned();
    let mtu = mtu.unwrap_or_else(|| setup.facts().mtu);
    // Drop this reference to the tree before the change, because a change clones the tree if
    // another reference to it exists.
    drop(setup);
    let line = command.on(&name);
    // `Line::on` leaves one space between two words. A string in quotes may have several in a row,
    // which stay: `run` joins what it gets by spaces again.
    let words: Vec<&str> = line.split(' ').filter(|_| !line.is_empty()).collect();
    run(&mut One(Target { name: &name, tree, mtu, deaf: None, followers: None }), &words)
        .map(|(out, _)| out)
}

#[cfg(test)]
mod tests {
    use onramp::cmd::Class;
    use onramp_core::Setup;

    use super::*;

    /// A command that names no device works, whatever name the link's tree has for its device.
    #[test]
    fn a_link_needs_no_name_for_its_device() {
        let mut tree = Setup::default();
        tree.apply("qdisc add dev eth7 root handle 1: htb").expect("a root");
        let device = Box::new(onramp::dev::Null::default()) as Box<dyn onramp::Device>;
        let link = Link::devices([device]).tree(&tree).build().expect("a link");
        let class = Class::add("htb", onramp_core::Handle::new(1, 1));
        tc(&link, class.option("rate", onramp_core::Rate::bytes_per_second(1_000_000)))
            .expect("typed parts");
        tc(&link, "filter add parent 1: protocol ip handle 5 fw classid 1:1").expect("words");
        for (line, shown) in [
            ("qdisc", "qdisc htb 1: root "),
            ("tc class show", "class htb 1:1 root "),
            ("-s filter show", "filter parent 1: protocol ip "),
        ] {
            let told = tc(&link, line).expect(line);
            assert!(told.starts_with(shown), "{line}: {told:?}");
        }
    }

    #[test]
    fn a_string_keeps_its_spaces() {
        let device = Box::new(onramp::dev::Null::default()) as Box<dyn onramp::Device>;
        let link = Link::devices([device]).build().expect("a link");
        tc(&link, "  qdisc  replace\troot handle 1: prio ").expect("a root");
        let line = |pref: u32, string: &str| {
            format!(
                "filter add parent 1:  pref {pref} protocol all basic match 'nbyte({string} at 0)' \
                 classid 1:3"
            )
        };
        tc(&link, line(1, r#""a  b""#)).expect("by tc");
        link.change(line(2, r#""a  b""#)).expect("by the link");
        // No shell has taken these backslashes away.
        tc(&link, line(3, r#"\"a  b\""#)).expect("by tc");
        let lines = link.setup().lines();
        assert_eq!(lines.iter().filter(|line| line.contains("\"a  b\"")).count(), 3, "{lines:?}");
    }

    /// With the option `-s`, the listing of filters also shows what they have counted.
    #[test]
    fn filters_are_listed_with_their_counters_if_asked() {
        let device = Box::new(onramp::dev::Null::default()) as Box<dyn onramp::Device>;
        let link = Link::devices([device]).build().expect("a link");
        for line in
            ["qdisc replace root handle 1: prio", "filter add parent 1: matchall action gact pass"]
        {
            tc(&link, line).expect(line);
        }
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.send(&flow, b"four").expect("the link is open");
        assert!(sender.flush(std::time::Duration::from_secs(50)));
        let text = tc(&link, "-s filter show parent 1:").expect("it is listed");
        assert!(text.contains("(rule hit 1)") && text.contains("Sent 46 bytes 1 pkt"), "{text}");
        let quiet = tc(&link, "filter show parent 1:").expect("it is listed");
        assert!(!quiet.contains("Sent") && !quiet.contains("rule hit"), "{quiet}");
    }
}
