//! Errors of the C interface: a negative errno for the caller, and a text for each thread.

use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use onramp::{BuildError, ConfigError, PortError, TrySendError};
use onramp_host::TcError;

/// Size of the buffer for a thread's text, bytes. A longer text is cut.
const TEXT_MAX: usize = 1_024;

thread_local! {
    /// Why the last failed call of this thread failed; ends with a zero byte. The buffer has no
    /// destructor, so a thread may fail, and read why, until its end.
    static TEXT: RefCell<[u8; TEXT_MAX]> = const { RefCell::new([0; TEXT_MAX]) };
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Error {
    /// The errno, which the call returns as a negative number.
    pub(crate) errno: c_int,
    pub(crate) text: Cow<'static, str>,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(errno: c_int, text: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, text: text.into() }
    }

    /// An argument that is wrong (`EINVAL`).
    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EINVAL, text)
    }

    /// An error of the operating system, met while `doing` something.
    pub(crate) fn system(doing: impl std::fmt::Display, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self::new(errno, format!("cannot {doing}: {error}"))
    }

    /// Returns the error with `place` in front of its text.
    pub(crate) fn at(self, place: impl std::fmt::Display) -> Self {
        Self { errno: self.errno, text: format!("{place}: {}", self.text).into() }
    }

    fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let why = panic.downcast_ref::<&str>().copied();
        let why = why.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let why = why.unwrap_or("no message");
        let text = format!(
            "the library panicked: {why}; this is a bug of the library, please report it. Free \
             the object that the call used: its state is unknown"
        );
        Self::new(libc::EOWNERDEAD, text)
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<TrySendError> for Error {
    fn from(error: TrySendError) -> Self {
        let (errno, text) = match error {
            TrySendError::Full => {
                (libc::EAGAIN, "no room: wait until queued packets have left (onramp_sender_wait)")
            }
            TrySendError::TooLarge => {
                (libc::EMSGSIZE, "the message is larger than a UDP datagram can be (65507 bytes)")
            }
            TrySendError::Closed => (libc::EPIPE, "the link is closed"),
            TrySendError::PortDead => {
                (libc::EOWNERDEAD, "the flow's port is dead: its qdisc or device panicked")
            }
            other => return Self::new(libc::EIO, other.to_string()),
        };
        Self::new(errno, text)
    }
}

impl From<PortError> for Error {
    fn from(error: PortError) -> Self {
        let errno = match error {
            PortError::Config(error) => return error.into(),
            PortError::Closed => libc::EPIPE,
            PortError::Late(_) => libc::EINPROGRESS,
            PortError::Blocked(_) => libc::EBUSY,
            PortError::Dead(_) => libc::EOWNERDEAD,
            PortError::Nested => libc::EDEADLK,
            _ => libc::EIO,
        };
        Self::new(errno, error.to_string())
    }
}

impl From<TcError> for Error {
    fn from(error: TcError) -> Self {
        match error {
            TcError::Config(error) => error.into(),
            TcError::Port(error) => error.into(),
            other => Self::invalid(other.to_string()),
        }
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        let system = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let errno = match &error {
            BuildError::Device(device) => system(&device.source),
            BuildError::Runner(error)
            | BuildError::Timer(error)
            | BuildError::Pin(_, error)
            | BuildError::Priority(_, error) => system(error),
            _ => libc::EINVAL,
        };
        Self::new(errno, error.to_string())
    }
}

/// Runs `f` for a function of the interface. Returns the number that `f` returns, or a negative
/// errno, whose text [`text`] then has. A panic of `f` ends here, as `EOWNERDEAD`.
pub(crate) fn entry(f: impl FnOnce() -> Result<usize>) -> c_int {
    let done = catch_unwind(AssertUnwindSafe(f));
    match done.unwrap_or_else(|panic| Err(Error::of_panic(&*panic))) {
        Ok(number) => c_int::try_from(number).unwrap_or(c_int::MAX),
        Err(error) => {
            note(&error.text);
            -error.errno
        }
    }
}

/// Stores the text of an error of this thread.
fn note(text: &str) {
    let text = &text[..text.floor_char_boundary(TEXT_MAX - 1)];
    TEXT.with_borrow_mut(|buffer| {
        buffer[..text.len()].copy_from_slice(text.as_bytes());
        buffer[text.len()] = 0;
    });
}

/// Returns the text of the last failed call of this thread; an empty one if none has failed.
pub(crate) fn text() -> *const c_char {
    TEXT.with(|buffer| buffer.as_ptr().cast_const().cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted() -> String {
        TEXT.with_borrow(|buffer| {
            let end = buffer.iter().position(|byte| *byte == 0).expect("it ends with a zero byte");
            String::from_utf8(buffer[..end].to_vec()).expect("it is cut between characters")
        })
    }

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        let number = 7;
        assert_eq!(entry(|| panic!("number {number}")), -libc::EOWNERDEAD);
        assert!(noted().contains("the library panicked: number 7;"), "{}", noted());
        assert_eq!(entry(|| panic!("no number")), -libc::EOWNERDEAD);
        assert!(noted().contains("panicked: no number;"), "{}", noted());
    }

    #[test]
    fn an_error_of_the_system_keeps_its_errno() {
        let error = BuildError::Timer(io::Error::from_raw_os_error(libc::EMFILE));
        let error = Error::from(error);
        assert_eq!(error.errno, libc::EMFILE);
        assert!(error.text.contains("timer"), "{}", error.text);
    }

    #[test]
    fn texts_belong_to_their_thread_and_stay_until_the_next_error() {
        assert_eq!(noted(), "");
        assert_eq!(entry(|| Err(Error::invalid("wrong"))), -libc::EINVAL);
        assert_eq!(entry(|| Ok(3)), 3);
        assert_eq!(noted(), "wrong");
        std::thread::scope(|scope| scope.spawn(|| assert_eq!(noted(), "")).join())
            .expect("the other thread sees no error");
        assert_eq!(entry(|| Err(Error::invalid("ä".repeat(TEXT_MAX)))), -libc::EINVAL);
        assert_eq!(noted(), "ä".repeat(TEXT_MAX / 2 - 1));
        assert_eq!(entry(|| Ok(usize::MAX)), c_int::MAX);
    }
}
