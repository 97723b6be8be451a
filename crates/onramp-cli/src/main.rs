//! The program `onramp`.
#![forbid(unsafe_code)]

mod bench;
mod capture;
mod cmd;
mod error;
mod host;
mod limits;
mod machine;
mod netns;
mod output;
mod progress;
mod reference;
mod replay;
mod report;
mod send;
mod setup;
mod signals;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Linux traffic control you can link: any number of threads send through one qdisc, and none
/// ever waits for a lock
#[derive(Debug, Parser)]
#[command(
    name = "onramp",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  onramp demo
  onramp bench udp --threads 240 --size 120 --rounds 5 --json out.json
  onramp send udp://127.0.0.1:4000 --from examples/voice.pcapng --rate 10mbit
  onramp replay examples/uplink.pcap --qdisc fq --rate 10mbit --html report.html
  onramp daemon
  onramp wire --qdisc 'netem delay 20ms rate 10mbit' -- ping -c 3 192.0.2.2
  onramp exec --qdisc 'tbf rate 10mbit burst 64kb latency 50ms' -- iperf3 -u -b 0 -c 192.0.2.2
  onramp ip link add d0 up type dummy
  onramp tc qdisc add dev d0 root fq"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(cmd::demo::Args),
    /// Compare ways of sending
    #[command(
        subcommand,
        after_help = "\
Examples:
  onramp bench udp --threads 240 --size 120 --rounds 5 --json out.json
  onramp bench udp --verify --threads 240 --qdisc 'fq maxrate 1mbit'"
    )]
    Bench(Bench),
    Send(cmd::send::Args),
    Replay(cmd::replay::Args),
    Daemon(cmd::daemon::Args),
    /// Configure qdiscs, classes and filters of the daemon's devices, as iproute2's tc does
    #[command(disable_help_flag = true)]
    Tc(cmd::remote::Words),
    /// Make, change and show the daemon's devices, as iproute2's ip does
    #[command(disable_help_flag = true)]
    Ip(cmd::remote::Words),
    Traffic(cmd::traffic::Args),
    Wire(Box<cmd::wire::Args>),
    Exec(cmd::exec::Args),
    Shape(cmd::shape::Args),
    Save(cmd::save::Args),
    Top(cmd::top::Args),
    /// Set and show limits that many hosts have in common
    #[command(
        subcommand,
        after_help = "\
Examples:
  onramp fleet limit set tenant-a 10gbit --hosts 40 --engine redis://192.0.2.1
  onramp daemon --fleet redis://192.0.2.1    # on each host; then:
  onramp tc qdisc add dev u0 root tbf rate fleet tenant-a burst 64kb latency 50ms
  onramp fleet show --engine redis://192.0.2.1"
    )]
    Fleet(Fleet),
    Monitor(cmd::monitor::Args),
    Man(cmd::man::Args),
    Completions(cmd::completions::Args),
    /// Run an experiment of the laboratory, which compares Onramp with other designs
    #[command(
        subcommand,
        after_help = "\
Examples:
  onramp lab contention --threads 1,2,16,240 --qdisc fq --json contention.json
  onramp lab aqm --scenarios bursts
  onramp lab report contention.json --html report.html"
    )]
    Lab(Lab),
    /// Predict how Onramp behaves on a machine of many processors, by simulation
    #[command(
        subcommand,
        after_help = "\
Examples:
  onramp sim run udp-480
  onramp sim run my-load.toml --draws 20 --json prediction.json
  onramp sim sweep udp-480 --threads 1,8,64,240,480 --ports 1,8,30
  onramp sim calibrate --output here.toml
  onramp sim published"
    )]
    Sim(Sim),
}

#[derive(Debug, Subcommand)]
enum Bench {
    Udp(cmd::bench::Args),
}

#[derive(Debug, Subcommand)]
enum Lab {
    Contention(cmd::lab::contention::Args),
    Loopback(cmd::lab::loopback::Args),
    Softirq(cmd::lab::softirq::Args),
    Instances(cmd::lab::instances::Args),
    Layout(cmd::lab::layout::Args),
    Kernel(cmd::lab::kernel::Args),
    Pacing(cmd::lab::pacing::Args),
    Wire(cmd::lab::wire::Args),
    Qdisc(cmd::lab::qdisc::Args),
    Control(cmd::lab::control::Args),
    Full(cmd::lab::full::Args),
    Aqm(cmd::lab::aqm::Args),
    Report(cmd::lab::report::Args),
}

#[derive(Debug, Subcommand)]
enum Fleet {
    /// Set, delete and list limits
    #[command(
        subcommand,
        after_help = "\
Examples:
  onramp fleet limit set tenant-a 10gbit --hosts 40
  onramp fleet limit list"
    )]
    Limit(Limit),
    Show(cmd::fleet::show::ShowArgs),
    Top(cmd::fleet::show::TopArgs),
}

#[derive(Debug, Subcommand)]
enum Limit {
    Set(cmd::fleet::limit::SetArgs),
    Delete(cmd::fleet::limit::DeleteArgs),
    List(cmd::fleet::limit::ListArgs),
}

#[derive(Debug, Subcommand)]
enum Sim {
    Run(cmd::sim::run::Args),
    Sweep(cmd::sim::sweep::Args),
    Calibrate(cmd::sim::calibrate::Args),
    Published(cmd::sim::published::Args),
    #[command(hide = true)]
    Draw(cmd::sim::draw::Args),
}

fn main() -> ExitCode {
    // `tc` and `ip` parse their own arguments, because clap would take some of the words for
    // options.
    if let Some((program, words)) = cmd::remote::called(std::env::args_os()) {
        return cmd::remote::run(program, &words);
    }
    if let Some(words) = cmd::completions::asked(std::env::args_os()) {
        let done = cmd::completions::complete(&words);
        return done.map_or_else(|error| error::report(&error), |()| ExitCode::SUCCESS);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return error::report_usage(&error),
    };
    let done = match cli.command {
        Command::Demo(args) => cmd::demo::run(&args),
        Command::Bench(Bench::Udp(args)) => cmd::bench::run(args),
        Command::Send(args) => cmd::send::run(&args),
        Command::Replay(args) => cmd::replay::run(&args),
        Command::Daemon(args) => cmd::daemon::run(args),
        Command::Traffic(args) => cmd::traffic::run(args),
        Command::Wire(args) => cmd::wire::run(*args),
        Command::Exec(args) => cmd::exec::run(&args),
        Command::Shape(args) => cmd::shape::run(args),
        Command::Save(args) => cmd::save::run(args),
        Command::Top(args) => cmd::top::run(args),
        Command::Monitor(args) => cmd::monitor::run(args),
        Command::Tc(_) | Command::Ip(_) => unreachable!("they were called above"),
        Command::Man(args) => cmd::man::run(&args),
        Command::Completions(args) => cmd::completions::run(&args),
        Command::Fleet(Fleet::Limit(Limit::Set(args))) => cmd::fleet::limit::set(&args),
        Command::Fleet(Fleet::Limit(Limit::Delete(args))) => cmd::fleet::limit::delete(&args),
        Command::Fleet(Fleet::Limit(Limit::List(args))) => cmd::fleet::limit::list(&args),
        Command::Fleet(Fleet::Show(args)) => cmd::fleet::show::show(&args),
        Command::Fleet(Fleet::Top(args)) => cmd::fleet::show::top(&args),
        Command::Lab(Lab::Contention(args)) => cmd::lab::contention::run(&args),
        Command::Lab(Lab::Loopback(args)) => cmd::lab::loopback::run(&args),
        Command::Lab(Lab::Softirq(args)) => cmd::lab::softirq::run(&args),
        Command::Lab(Lab::Instances(args)) => cmd::lab::instances::run(&args),
        Command::Lab(Lab::Layout(args)) => cmd::lab::layout::run(&args),
        Command::Lab(Lab::Kernel(args)) => cmd::lab::kernel::run(&args),
        Command::Lab(Lab::Pacing(args)) => cmd::lab::pacing::run(&args),
        Command::Lab(Lab::Wire(args)) => cmd::lab::wire::run(&args),
        Command::Lab(Lab::Qdisc(args)) => cmd::lab::qdisc::run(&args),
        Command::Lab(Lab::Control(args)) => cmd::lab::control::run(&args),
        Command::Lab(Lab::Full(args)) => cmd::lab::full::run(&args),
        Command::Lab(Lab::Aqm(args)) => cmd::lab::aqm::run(&args),
        Command::Lab(Lab::Report(args)) => cmd::lab::report::run(&args),
        Command::Sim(Sim::Run(args)) => cmd::sim::run::run(&args),
        Command::Sim(Sim::Sweep(args)) => cmd::sim::sweep::run(&args),
        Command::Sim(Sim::Calibrate(args)) => cmd::sim::calibrate::run(&args),
        Command::Sim(Sim::Published(args)) => cmd::sim::published::run(&args),
        Command::Sim(Sim::Draw(args)) => cmd::sim::draw::run(&args),
    };
    done.map_or_else(|error| error::report(&error), |()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use clap::error::ErrorKind;

    use super::*;

    /// Gives a wrong value to every option and argument of every command. The messages are in the
    /// words of a user, and not in those of Rust's own parsers.
    #[test]
    fn no_message_is_about_the_types_of_values() {
        fn check(command: &clap::Command, path: &[String], told: &mut Vec<String>) {
            for argument in command.get_arguments().filter(|it| it.get_action().takes_values()) {
                let option = argument.get_long().map(|long| format!("--{long}"));
                let option =
                    option.or_else(|| argument.get_short().map(|short| format!("-{short}")));
                for wrong in ["x!", "5ms", "", "99999999999999999999999", "1e99"] {
                    let words = path.iter().cloned().chain(option.clone());
                    let words = words.chain([wrong.to_owned()]);
                    let Err(error) = Cli::command().try_get_matches_from(words) else { continue };
                    if error.kind() == ErrorKind::ValueValidation {
                        told.push(error.to_string());
                    }
                }
            }
            for sub in command.get_subcommands() {
                let path = [path, &[sub.get_name().to_owned()]].concat();
                check(sub, &path, told);
            }
        }
        let mut told = Vec::new();
        check(&Cli::command(), &["onramp".to_owned()], &mut told);
        assert!(told.len() > 100, "{told:?}");
        let rust = ["digit", "integer", "number too", "float", "syntax", "..="];
        told.retain(|message| rust.iter().any(|word| message.contains(word)));
        assert_eq!(told, [""; 0]);
    }

    #[test]
    fn the_help_of_every_command_has_examples() {
        fn check(command: &clap::Command) {
            let name = command.get_name();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            // iproute2's own help, which a user of `tc` and `ip` gets, has none.
            let is_iproute2 = ["tc", "ip"].contains(&name);
            assert!(is_iproute2 || help.contains("Examples:\n  "), "{name}: {help}");
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
