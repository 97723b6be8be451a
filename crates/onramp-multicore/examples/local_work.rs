//! Measures Onramp's own local work on this machine, and prints it as a file for the simulator.
//! Run: `cargo run --release -p onramp-multicore --example local_work`.

use onramp_multicore::local_work;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (_, work) = local_work(&mut |text| eprintln!("{text}"))?;
    print!("{}", work.text());
    Ok(())
}
