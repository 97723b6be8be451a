//! Changes of one direction of a wire.

use onramp_core::{Setup, Spec};

use crate::edit::{Edit, EditError};
use crate::series;

/// A change of one direction of a wire.
#[derive(Clone, Debug)]
pub enum Change {
    /// Other qdiscs, in place of all that the direction has: see [`Tree::set`] for the packets that
    /// wait. If a [`Schedule`](crate::Schedule) decides the rate, the first of a [`series`] stands
    /// in front of it and the others behind it.
    ///
    /// [`Tree::set`]: onramp_core::Tree::set
    Qdiscs(Box<Setup>),
    /// Another rate, delay, jitter or loss.
    Edit(Edit),
    /// Whether the direction is up. While it is down, every frame that comes to its end is lost;
    /// frames that wait in its qdiscs go on waiting there.
    Link(bool),
}

impl Change {
    /// Applies the change to the description of a direction's qdiscs. The other arguments are those
    /// of [`Edit::apply`].
    pub(crate) fn apply(
        &self,
        setup: &Setup,
        mtu: u32,
        has_rate: bool,
    ) -> Result<Option<Setup>, EditError> {
        match self {
            Self::Qdiscs(new) if new.root_id().is_none() => {
                Err(EditError("the new tree has no root".to_owned()))
            }
            Self::Qdiscs(new) => Ok(Some(Setup::clone(new))),
            Self::Edit(edit) => edit.apply(setup, mtu, has_rate).map(Some),
            Self::Link(_) => Ok(None),
        }
    }

    /// Reads changes from words: a property and its value (see [`Edit::new`]) any number of times,
    /// `link up` or `link down`; or `qdisc` and a qdisc in the syntax of `tc`, and after each
    /// `then` a further one behind it, which take the rest of the words.
    ///
    /// # Errors
    ///
    /// [`EditError`] says what is wrong.
    pub fn read(words: &[&str]) -> Result<Vec<Self>, EditError> {
        let (mut changes, mut words) = (Vec::new(), words);
        while let [word, rest @ ..] = words {
            let (change, rest) = match (*word, rest) {
                ("link", ["up", rest @ ..]) => (Self::Link(true), rest),
                ("link", ["down", rest @ ..]) => (Self::Link(false), rest),
                ("link", _) => return Err(EditError("link: expected up or down".to_owned())),
                ("qdisc", rest) => (Self::qdiscs(rest)?, &[][..]),
                (word, [value, rest @ ..]) => (Self::Edit(Edit::new(word, value)?), rest),
                (word, []) => {
                    Edit::new(word, "")?;
                    return Err(EditError(format!("{word}: its value is missing")));
                }
            };
            changes.push(change);
            words = rest;
        }
        if changes.is_empty() {
            let known = Edit::WORDS.join(", ");
            let why = format!("expected what changes: {known}, link up, link down, or qdisc");
            return Err(EditError(why));
        }
        Ok(changes)
    }

    fn qdiscs(words: &[&str]) -> Result<Self, EditError> {
        let stages: Vec<_> = words.split(|word| *word == "then").map(|own| own.join(" ")).collect();
        for stage in &stages {
            Spec::with_units(stage).map_err(|error| EditError(error.to_string()))?;
        }
        series(&stages)
            .map(|setup| Self::Qdiscs(Box::new(setup)))
            .map_err(|error| EditError(error.error.to_string()))
    }
}
