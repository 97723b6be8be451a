//! Measures this machine and prints its description as a file for the simulator. With the word
//! `check` and the name of such a file, plays games of two threads on this machine and on the
//! simulated one, and compares. With the word `work`, measures Onramp's own work, too, and prints
//! that as a file.
//! Run: `cargo run --release -p onramp-multicore --example calibrate [check FILE | work]`.

use std::{env, fs};

use onramp_multicore::{Description, calibrate, checks, local_work};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    match &*words.iter().map(String::as_str).collect::<Vec<_>>() {
        [] => {
            let machine = calibrate(&mut |text| eprintln!("{text}"))?;
            print!("{}", machine.text());
        }
        ["check", file] => {
            let machine = Description::read(&fs::read_to_string(file)?)?;
            for check in checks(&machine)? {
                let (name, measured, simulated) = (check.name, check.measured, check.simulated);
                let ratio = simulated / measured;
                let verdict = if (0.85..=1.15).contains(&ratio) { "within" } else { "beyond" };
                println!(
                    "{name}: {measured:.1} ns, simulated {simulated:.1} ns, ratio {ratio:.2} \
                     ({verdict} 15 %)"
                );
            }
        }
        ["work"] => {
            let (_, work) = local_work(&mut |text| eprintln!("{text}"))?;
            print!("{}", work.text());
        }
        _ => return Err("say nothing, `work`, or `check` and the name of a file".into()),
    }
    Ok(())
}
