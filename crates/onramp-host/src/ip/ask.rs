//! The properties of a device in commands `ip link add` and `ip link set`.

use super::words::{Fault, Words, check_name};

/// The properties that a command gave. A field is `None` if the command did not mention the
/// property.
#[derive(Debug, Default)]
pub(super) struct Ask<'a> {
    /// The name of the device, which stands alone or after `dev`.
    pub(super) dev: Option<&'a str>,
    /// The new name: the word after `name`.
    pub(super) name: Option<&'a str>,
    pub(super) up: Option<bool>,
    pub(super) mtu: Option<i32>,
    pub(super) txqueuelen: Option<u32>,
    pub(super) numtxqueues: Option<i32>,
    pub(super) index: Option<u32>,
    pub(super) address: Option<[u8; 6]>,
    /// The type of the device: the word after `type`. The words after the type belong to the type.
    pub(super) kind: Option<&'a str>,
}

/// Stores the value of an option in `place`. Returns an error if the command has already given the
/// option.
fn once<T>(place: &mut Option<T>, key: &str, word: &str, value: T) -> Result<(), Fault> {
    if place.is_some() {
        return Err(Fault::again(key, word));
    }
    *place = Some(value);
    Ok(())
}

impl<'a> Ask<'a> {
    /// Reads the words of a command up to and including the type, or to the end if there is no
    /// type.
    pub(super) fn read(words: &mut Words<'a>) -> Result<Self, Fault> {
        Self::read_until(words, |_| false)
    }

    /// Reads the words of a command as [`read`](Self::read) does, but at most up to the first word
    /// for which `ends` returns true. This word stays unread.
    pub(super) fn read_until(
        words: &mut Words<'a>,
        ends: impl Fn(&str) -> bool,
    ) -> Result<Self, Fault> {
        let mut ask = Self::default();
        while words.peek().is_some_and(|word| !ends(word)) {
            let Some(word) = words.next() else { break };
            ask.word(word, words)?;
            if ask.kind.is_some() {
                break;
            }
        }
        Ok(ask)
    }

    fn word(&mut self, word: &'a str, words: &mut Words<'a>) -> Result<(), Fault> {
        match word {
            "up" | "down" => self.up = Some(word == "up"),
            "name" => once(&mut self.name, word, words.peek().unwrap_or(""), words.name(word)?)?,
            "mtu" => once(&mut self.mtu, word, words.peek().unwrap_or(""), words.number(word)?)?,
            "txqueuelen" | "txqlen" | "qlen" => {
                let (key, given) = ("txqueuelen", words.peek().unwrap_or(""));
                // As in iproute2, a queue length of -1 is stored as the greatest unsigned number.
                let length = words.number(key)?.cast_unsigned();
                once(&mut self.txqueuelen, key, given, length)?;
            }
            "numtxqueues" => {
                let given = words.peek().unwrap_or("");
                once(&mut self.numtxqueues, word, given, words.number(word)?)?;
            }
            // The number of receive queues is accepted and ignored, because devices here have none.
            "numrxqueues" => drop(words.number(word)?),
            "index" => {
                let given = words.peek().unwrap_or("");
                let index = u32::try_from(words.number(word)?).ok().filter(|index| *index > 0);
                let wrong = || Fault::argument(given, "Invalid \"index\" value");
                once(&mut self.index, word, given, index.ok_or_else(wrong)?)?;
            }
            "address" => {
                let given = words.value()?;
                let wrong = || Fault::said(1, format!("\"{given}\" is invalid lladdr."));
                self.address = Some(hardware(given).ok_or_else(wrong)?);
            }
            "help" => return Err(Fault::usage(&super::help::link())),
            _ if "type".starts_with(word) && !word.is_empty() => self.kind = Some(words.value()?),
            _ => self.device(word, words)?,
        }
        Ok(())
    }

    fn device(&mut self, word: &'a str, words: &mut Words<'a>) -> Result<(), Fault> {
        let name = if word == "dev" { words.value()? } else { word };
        if self.dev.is_some() {
            return Err(Fault::twice("dev", name));
        }
        check_name(name, "dev")?;
        self.dev = Some(name);
        Ok(())
    }
}

/// Returns an error, that of the kernel, if a device cannot have this hardware address: it is the
/// address of a group, or all zeros.
pub(super) fn check_address(address: [u8; 6]) -> Result<(), Fault> {
    if address[0] & 1 == 0 && address != [0; 6] {
        return Ok(());
    }
    let why = format!(
        "address {}: expected the address of one device: an even first byte, and not only zeros",
        super::address(address)
    );
    Err(Fault::kernel("RTNETLINK answers: Cannot assign requested address", &why))
}

/// Parses a hardware address of six bytes: `02:00:00:00:00:01`.
fn hardware(word: &str) -> Option<[u8; 6]> {
    let mut bytes = word.split(':').map(|byte| {
        let sound = (1..=2).contains(&byte.len()) && byte.bytes().all(|c| c.is_ascii_hexdigit());
        if sound { u8::from_str_radix(byte, 16).ok() } else { None }
    });
    let mut address = [0; 6];
    for place in &mut address {
        *place = bytes.next()??;
    }
    bytes.next().is_none().then_some(address)
}
