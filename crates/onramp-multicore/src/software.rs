//! What software costs, each number with its source.

use std::collections::BTreeMap;

use crate::machines::Unknown;
use crate::parameter::{Draw, Parameter};

/// Parameters of software, by name.
#[derive(Debug)]
pub(crate) struct Parameters(BTreeMap<String, Parameter>);

impl Parameters {
    /// Returns the parameters of a program that sends through Onramp: what the program does,
    /// Onramp's own local work as it was measured, and Linux's drivers.
    pub(crate) fn onramp() -> Result<Self, Unknown> {
        Self::read(&[
            include_str!("../data/software/program.toml"),
            include_str!("../data/software/onramp.toml"),
            include_str!("../data/software/linux-2025.toml"),
        ])
    }

    /// Returns the parameters of Linux of October 2025.
    pub(crate) fn linux_2025() -> Result<Self, Unknown> {
        Self::read(&[include_str!("../data/software/linux-2025.toml")])
    }

    /// Reads files. The first file that names a parameter has it.
    fn read(texts: &[&str]) -> Result<Self, Unknown> {
        let mut all = BTreeMap::new();
        for text in texts {
            let read: BTreeMap<String, Parameter> =
                toml::from_str(text).map_err(|error| Unknown::new(error.to_string()))?;
            for (name, parameter) in read {
                all.entry(name).or_insert(parameter);
            }
        }
        Ok(Self(all))
    }

    fn get(&self, name: &str) -> Result<&Parameter, Unknown> {
        self.0.get(name).ok_or_else(|| Unknown::new(format!("there is no parameter {name:?}")))
    }

    /// Draws a value, in the parameter's own unit.
    pub(crate) fn draw(&self, draw: &mut Draw, name: &str) -> Result<f64, Unknown> {
        Ok(draw.draw(self.get(name)?))
    }

    /// Draws a number of picoseconds from an interval of nanoseconds.
    pub(crate) fn picoseconds(&self, draw: &mut Draw, name: &str) -> Result<u64, Unknown> {
        Ok(draw.picoseconds(self.get(name)?))
    }

    /// Draws a number of things.
    pub(crate) fn count(&self, draw: &mut Draw, name: &str) -> Result<u32, Unknown> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float stays in range, and no count is negative"
        )]
        let count = self.draw(draw, name)?.round() as u32;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_read() {
        for text in [
            include_str!("../data/software/linux-2001.toml"),
            include_str!("../data/software/linux-2004.toml"),
            include_str!("../data/software/linux-2009.toml"),
        ] {
            assert!(!Parameters::read(&[text]).unwrap().0.is_empty());
        }
        let onramp = Parameters::onramp().unwrap();
        for (name, parameter) in &onramp.0 {
            let Parameter { low, high, .. } = *parameter;
            assert!(low >= 0.0 && low <= high && high.is_finite(), "{name}");
        }
        let mut draw = Draw::new(0);
        let quota = Parameters::linux_2025().unwrap().count(&mut draw, "quota").unwrap();
        assert_eq!(quota, 64);
        let own = onramp.picoseconds(&mut draw, "enqueue_fq").unwrap();
        assert!(own < 40_000, "that of Onramp, not of Linux: {own}");
        let why = onramp.draw(&mut draw, "none").unwrap_err().to_string();
        assert_eq!(why, "there is no parameter \"none\"");
    }
}
