//! Gives the shared library its name: `libonramp.so.` and the version of the interface, so that
//! programs load a library that they understand.

use std::fs;

fn main() {
    println!("cargo:rerun-if-changed=src/abi.rs");
    let code = fs::read_to_string("src/abi.rs").expect("src/abi.rs can be read");
    let version = code
        .lines()
        .find_map(|line| line.strip_prefix("pub const ONRAMP_ABI: u32 = ")?.strip_suffix(';'))
        .expect("src/abi.rs has a line `pub const ONRAMP_ABI: u32 = ...;`");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libonramp.so.{version}");
}
