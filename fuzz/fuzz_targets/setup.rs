//! Any text as lines of `tc`: an error or a tree that can be built, and nothing else.
#![no_main]

use onramp_core::Setup;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let mut setup = Setup::default();
    for line in text.lines() {
        let _ = setup.apply(line);
    }
    drop(setup.build(1514, 1));
});
