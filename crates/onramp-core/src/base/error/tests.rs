//! Tests the texts of errors, and to which program (`tc` or the kernel) each error is attributed.

use super::*;

#[test]
fn an_error_names_the_place_the_option_and_the_word() {
    for (key, value, text) in [
        ("", "", "here: why"),
        ("", "word", "here: unexpected \"word\": why"),
        ("limit", "", "here: \"limit\": why"),
        ("limit", "word", "here: illegal \"limit\" \"word\": why"),
        ("here", "word", "here: illegal \"word\": why"),
        ("here", "", "here: \"here\": why"),
    ] {
        let error = ConfigError::new("here", key, value, "why");
        assert_eq!(error.fault, Fault::Usage);
        assert_eq!(error.to_string(), text);
    }
}

/// The texts of the error numbers are those of `strerror(3)`.
#[test]
fn the_kernel_speaks_as_tc_prints_it() {
    for (errno, text) in [
        (Errno::Busy, "Device or resource busy"),
        (Errno::Exists, "File exists"),
        (Errno::Invalid, "Invalid argument"),
        (Errno::NoDevice, "No such device"),
        (Errno::NoEntry, "No such file or directory"),
        (Errno::NoSpace, "No space left on device"),
        (Errno::NotSupported, "Operation not supported"),
        (Errno::Range, "Numerical result out of range"),
    ] {
        let fault = ConfigError::new("", "", "", "").kernel(errno, "").fault;
        assert_eq!(fault, Fault::Kernel(errno, None));
        assert_eq!(fault.kernel_text(), Some(format!("RTNETLINK answers: {text}")));
        let fault = ConfigError::new("", "", "", "").kernel(errno, "no such thing").fault;
        assert_eq!(fault, Fault::Kernel(errno, Some("no such thing")));
        assert_eq!(
            (fault.kernel_text().as_deref(), fault.code()),
            (Some("Error: no such thing."), 2)
        );
    }
    assert_eq!((Fault::Usage.kernel_text(), Fault::Usage.code()), (None, 1));
    let fault = ConfigError::new("", "", "", "").argument().fault;
    assert_eq!((fault, fault.kernel_text(), fault.code()), (Fault::Argument, None, 255));
}

#[test]
fn a_clash_is_the_kernels_unless_it_is_said() {
    let clash = Clash::from(("key", "why"));
    let expected = |fault| Clash { key: "key", why: "why".into(), fault };
    assert_eq!(clash, expected(Fault::Kernel(Errno::Invalid, None)));
    let said = clash.said(Errno::Range, "words");
    assert_eq!(said, expected(Fault::Kernel(Errno::Range, Some("words"))));
    assert_eq!(Clash::usage("key", "why"), expected(Fault::Usage));
}
