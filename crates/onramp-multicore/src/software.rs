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

    /// Returns the parameters of Linux 2.6.29.
    pub(crate) fn linux_2009() -> Result<Self, Unknown> {
        Self::read(&[include_str!("../data/software/linux-2009.toml")])
    }

    /// Returns the parameters of Linux 2.4 on a machine of many processors.
    pub(crate) fn linux_2004() -> Result<Self, Unknown> {
        Self::read(&[include_str!("../data/software/linux-2004.toml")])
    }

    /// Returns the parameters of Linux 2.4.10 on a small server, and of its clients.
    pub(crate) fn linux_2001() -> Result<Self, Unknown> {
        Self::read(&[
            include_str!("../data/software/linux-2001.toml"),
            include_str!("../data/software/http-2001.toml"),
        ])
    }

    /// Reads files. The first file that names a parameter has it.
    fn read(texts: &[&str]) -> Result<Self, Unknown> {
        let mut all = BTreeMap::new();
        for text in texts {
            let read: BTreeMap<String, Parameter> =
                toml::from_str(text).map_err(|error| Unknown::in_file(text, &error))?;
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

    /// Draws a share of a number of things.
    pub(crate) fn share_of(&self, draw: &mut Draw, name: &str, all: u32) -> Result<u32, Unknown> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float stays in range, and no share is negative"
        )]
        let share = (self.draw(draw, name)? * f64::from(all)).round() as u32;
        Ok(share)
    }

    /// Draws one of the two ends of an interval of which no value in between is possible. The
    /// middle of the interval stands for its high end.
    pub(crate) fn either(&self, draw: &mut Draw, name: &str) -> Result<u32, Unknown> {
        let Parameter { low, high, .. } = *self.get(name)?;
        // A little below the middle, so that rounding does not decide.
        let is_high = self.draw(draw, name)? > (low * high).sqrt() * (1.0 - 1e-9);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float stays in range, and no count is negative"
        )]
        let end = if is_high { high } else { low } as u32;
        Ok(end)
    }

    /// Draws how often something happens in a second, in units of `unit`, and returns the time from
    /// one to the next, picoseconds.
    pub(crate) fn period_ps(&self, draw: &mut Draw, name: &str, unit: f64) -> Result<u64, Unknown> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float stays in range, and no time is negative"
        )]
        let period = (1e12 / (self.draw(draw, name)? * unit)).round() as u64;
        Ok(period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_read() {
        for text in [
            include_str!("../data/software/linux-2001.toml"),
            include_str!("../data/software/http-2001.toml"),
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
