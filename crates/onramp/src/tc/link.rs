//! Commands of `tc` on a single link. The caller need not name the device.

use onramp_core::Change;

use super::{Class, Command, Filter, Qdisc, Target, Targets, TcError, run};
use crate::Link;

/// A single link, as the only device that commands may name.
struct One<'a>(Target<'a>);

impl Targets for One<'_> {
    fn target(&self, name: &str) -> Option<Target<'_>> {
        self.targets().into_iter().find(|target| target.name == name)
    }

    fn targets(&self) -> Vec<Target<'_>> {
        let Target { name, link, mtu } = self.0;
        vec![Target { name, link, mtu }]
    }

    fn changed(&mut self, _name: &str, _line: &str, _change: &Change) {}
}

impl Link {
    /// Carries out a command of `tc`, and returns what `tc` prints. The command need not name a
    /// device, because there is only one. That device is called `link`, or whatever the lines
    /// called it with which the link was built.
    ///
    /// Use it for changes and for listings. A change takes effect while other threads send.
    ///
    /// ```
    /// use onramp::{Link, dev, tc};
    ///
    /// let link = Link::devices([Box::new(dev::Null::default()) as _]).build()?;
    /// link.tc("qdisc replace root handle 1: fq limit 1000")?;
    /// link.tc(tc::Qdisc::change("fq").root().option("flow_limit", 50_u32))?;
    /// let shown = link.tc("qdisc show")?;
    /// assert!(shown.starts_with("qdisc fq 1: root refcnt 2 limit 1000p flow_limit 50p "));
    /// let error = link.tc("qdisc add root fq").unwrap_err();
    /// assert_eq!(error.to_string(), r#"qdisc: "root": 1: is there already; use replace"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns a [`TcError`] that says what is wrong.
    pub fn tc(&self, command: impl Into<Line>) -> Result<String, TcError> {
        let setup = self.setup();
        let (name, mtu) = (setup.device().unwrap_or("link").to_owned(), setup.facts().mtu);
        // Drop this reference first: a change clones the tree if another reference to it exists.
        drop(setup);
        let line = match command.into().0 {
            Typed::Text(line) => line,
            Typed::Parts(command) => command.on(&name),
        };
        let mut words: Vec<&str> = line.split_ascii_whitespace().collect();
        if words.first() == Some(&"tc") {
            words.remove(0);
        }
        let object = words.iter().position(|word| !word.starts_with('-'));
        let named = words.iter().any(|word| matches!(*word, "dev" | "help"));
        if let Some(object) = object.filter(|_| !named) {
            if words.len() == object + 1 {
                words.push("show");
            }
            words.splice(object + 2..object + 2, ["dev", &name]);
        }
        run(&mut One(Target { name: &name, link: self, mtu }), &words).map(|(out, _)| out)
    }
}

/// A command of `tc`: text, or a typed value such as [`Qdisc`].
#[derive(Clone, Debug)]
pub struct Line(Typed);

#[derive(Clone, Debug)]
enum Typed {
    Text(String),
    /// A command from parts. The link adds the missing name of the device.
    Parts(Command),
}

impl From<&str> for Line {
    fn from(line: &str) -> Self {
        Self(Typed::Text(line.to_owned()))
    }
}

impl From<String> for Line {
    fn from(line: String) -> Self {
        Self(Typed::Text(line))
    }
}

/// Implements conversions from the commands that are made of parts.
macro_rules! lines {
    ($($name:ident)*) => {$(
        impl From<$name> for Line {
            fn from(command: $name) -> Self {
                Self(Typed::Parts(command.into()))
            }
        }
    )*};
}

lines! { Qdisc Class Filter Command }

#[cfg(test)]
mod tests {
    use onramp_core::Setup;

    use super::*;

    /// A command without a device name works whatever name the link's tree has for its device.
    #[test]
    fn a_link_needs_no_name_for_its_device() {
        let mut tree = Setup::default();
        tree.apply("qdisc add dev eth7 root handle 1: htb").expect("a root");
        let device = Box::new(crate::dev::Null::default()) as Box<dyn crate::Device>;
        let link = Link::devices([device]).tree(&tree).build().expect("a link");
        let class = Class::add("htb", onramp_core::Handle::new(1, 1));
        link.tc(class.option("rate", onramp_core::Rate(1_000_000))).expect("typed parts");
        link.tc("filter add parent 1: protocol ip handle 5 fw classid 1:1").expect("words");
        for (line, shown) in [
            ("qdisc", "qdisc htb 1: root "),
            ("tc class show", "class htb 1:1 root "),
            ("-s filter show", "filter parent 1: protocol ip "),
        ] {
            let told = link.tc(line).expect(line);
            assert!(told.starts_with(shown), "{line}: {told:?}");
        }
    }
}
