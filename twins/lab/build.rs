//! Makes this package compile its sources for the simulated machine.

fn main() {
    println!("cargo::rustc-cfg=sim");
    println!("cargo::rerun-if-changed=build.rs");
}
