//! What the system tells about this machine: how its processors are arranged, and how large its
//! caches are.

use std::collections::BTreeMap;

/// Reads a file of the system; `None` if there is none. Tests have files of their own.
pub(super) type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Sizes that are taken where the system does not tell them, as it often does not in virtual
/// machines: 32 KiB and 1 MiB.
const L1_BYTES: u64 = 32 << 10;
const L2_BYTES: u64 = 1 << 20;
const LINE_BYTES: u64 = 64;

/// Where a processor of the system is. The numbers count from 0 over the whole machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) cpu: usize,
    pub(super) socket: usize,
    pub(super) cluster: usize,
    pub(super) core: usize,
}

/// How far two processors are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distance {
    /// The same core.
    Sibling,
    /// The same cluster.
    Near,
    /// The same socket.
    Far,
    /// The same machine.
    Remote,
}

impl Distance {
    pub(super) const ALL: [Self; 4] = [Self::Sibling, Self::Near, Self::Far, Self::Remote];

    fn between(a: &Place, b: &Place) -> Self {
        match () {
            () if a.core == b.core => Self::Sibling,
            () if a.cluster == b.cluster => Self::Near,
            () if a.socket == b.socket => Self::Far,
            () => Self::Remote,
        }
    }
}

/// The arrangement of the processors that this program may use, and the sizes of their caches.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    /// Name of the processors, as `/proc/cpuinfo` gives it.
    pub(super) processor: String,
    pub(super) places: Vec<Place>,
    /// The grid that describes the processors, or comes nearest to doing so.
    pub(super) sockets: u16,
    pub(super) clusters: u16,
    pub(super) cores: u16,
    pub(super) threads: u16,
    pub(super) l1_bytes: u64,
    pub(super) l2_bytes: u64,
    /// `None` if the machine has no cache behind the second level, or the system does not tell it.
    pub(super) llc_bytes: Option<u64>,
    pub(super) line_bytes: u64,
    /// What a reader has to know about the grid and the caches.
    pub(super) remarks: Vec<String>,
}

impl Shape {
    /// Asks the system.
    pub(super) fn ask(read: Read<'_>) -> Self {
        let cpus = allowed(read);
        let mut remarks = Vec::new();
        let (mut sockets, mut clusters, mut cores) =
            (Numbers::default(), Numbers::default(), Numbers::default());
        let mut places = Vec::new();
        for &cpu in &cpus {
            let topology = |file: &str| read(&format!("{CPUS}/cpu{cpu}/topology/{file}"));
            let socket = topology("physical_package_id").unwrap_or_default();
            // The kernel has two names for each of these files.
            let core = topology("core_cpus_list").or_else(|| topology("thread_siblings_list"));
            let core = core.unwrap_or_else(|| format!("cpu {cpu}"));
            let last = Cache::of(read, cpu).into_iter().rfind(|cache| cache.level >= 3);
            let shared = last.map_or_else(|| format!("socket {socket}"), |cache| cache.shared);
            places.push(Place {
                cpu,
                socket: sockets.number(socket),
                cluster: clusters.number(shared),
                core: cores.number(core),
            });
        }
        let counts = [sockets.count(), clusters.count(), cores.count(), places.len()];
        let [sockets, clusters, cores, threads] = grid(counts);
        let described = [sockets, clusters, cores, threads].map(usize::from).iter().product();
        if places.len() != described {
            let [sockets, clusters, cores, cpus] = counts;
            remarks.push(format!(
                "the {cpus} processors ({cores} cores, {clusters} clusters, {sockets} sockets) \
                 make no even grid, so the nearest one is described"
            ));
        }
        let caches = Cache::of(read, cpus.first().copied().unwrap_or(0));
        let size = |is: &dyn Fn(u64) -> bool| {
            caches.iter().filter(|cache| is(cache.level)).map(|cache| cache.bytes).last()
        };
        let (l1, l2) = (size(&|level| level == 1), size(&|level| level == 2));
        if l1.is_none() || l2.is_none() {
            remarks.push("the system does not tell the sizes of all caches".into());
        }
        Self {
            processor: processor(read),
            places,
            sockets,
            clusters,
            cores,
            threads,
            l1_bytes: l1.unwrap_or(L1_BYTES),
            l2_bytes: l2.unwrap_or(L2_BYTES),
            llc_bytes: size(&|level| level >= 3),
            line_bytes: caches.first().map_or(LINE_BYTES, |cache| cache.line),
            remarks,
        }
    }

    /// Returns up to `most` pairs of processors at a distance, spread over all such pairs.
    pub(super) fn pairs(&self, distance: Distance, most: usize) -> Vec<[usize; 2]> {
        let all = self.places.iter().enumerate().flat_map(|(number, a)| {
            let others = self.places[number + 1..].iter();
            others.filter(|b| Distance::between(a, b) == distance).map(|b| [a.cpu, b.cpu])
        });
        spread(&all.collect::<Vec<_>>(), most)
    }

    /// Returns up to `most` processors, spread over all.
    pub(super) fn some_cpus(&self, most: usize) -> Vec<usize> {
        let all: Vec<_> = self.places.iter().map(|place| place.cpu).collect();
        spread(&all, most)
    }
}

/// Chooses up to `most` of `all`, at equal steps.
fn spread<T: Copy>(all: &[T], most: usize) -> Vec<T> {
    let count = all.len().min(most);
    (0..count).map(|n| all[n * all.len() / count]).collect()
}

/// Returns the grid (sockets, clusters in each, cores in each, threads in each) that describes a
/// machine with these numbers of sockets, clusters, cores and processors, or comes nearest.
fn grid(counts: [usize; 4]) -> [u16; 4] {
    let mut above = 1;
    counts.map(|count| {
        let each = ((count + above / 2) / above).max(1);
        above *= each;
        u16::try_from(each).unwrap_or(u16::MAX)
    })
}

const CPUS: &str = "/sys/devices/system/cpu";

/// Gives names numbers, in the order in which they come.
#[derive(Default)]
struct Numbers(BTreeMap<String, usize>);

impl Numbers {
    fn number(&mut self, name: String) -> usize {
        let next = self.0.len();
        *self.0.entry(name).or_insert(next)
    }
    fn count(&self) -> usize {
        self.0.len()
    }
}

/// A cache that holds data.
struct Cache {
    level: u64,
    bytes: u64,
    line: u64,
    /// The processors that share it.
    shared: String,
}

impl Cache {
    /// Returns the caches of a processor, by level.
    fn of(read: Read<'_>, cpu: usize) -> Vec<Self> {
        let cache = |index| {
            let file = |name: &str| read(&format!("{CPUS}/cpu{cpu}/cache/index{index}/{name}"));
            (file("type")? != "Instruction").then_some(())?;
            let size = file("size")?;
            let (number, unit) = match size.strip_suffix('M') {
                Some(number) => (number, 1 << 20),
                None => (size.strip_suffix('K').unwrap_or(&size), 1 << 10),
            };
            let line = file("coherency_line_size").and_then(|line| line.parse().ok());
            Some(Self {
                level: file("level")?.parse().ok()?,
                bytes: number.parse::<u64>().ok()? * unit,
                line: line.unwrap_or(LINE_BYTES),
                shared: file("shared_cpu_list").unwrap_or_default(),
            })
        };
        let mut caches: Vec<_> = (0..8).filter_map(cache).filter(|cache| cache.bytes > 0).collect();
        caches.sort_by_key(|cache| cache.level);
        caches
    }
}

/// Returns the processors that this program may use.
fn allowed(read: Read<'_>) -> Vec<usize> {
    let status = read("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cpus = line.map(list).unwrap_or_default();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Reads a list of processors, such as `0-3,8`.
fn list(text: &str) -> Vec<usize> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    });
    ranges.flatten().collect()
}

/// Returns the name of the processors.
fn processor(read: Read<'_>) -> String {
    let text = read("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let mut values = fields.filter(|(name, _)| name.trim() == key);
        values.next().map(|(_, value)| value.trim().to_owned())
    };
    // Arm has numbers in place of a name.
    let arm = || Some(format!("Arm {} {}", value("CPU implementer")?, value("CPU part")?));
    value("model name").or_else(arm).unwrap_or_else(|| "a processor without a name".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of sockets with clusters of cores with threads, as its files tell it. Processors
    /// are numbered as Linux does: first the first threads of all cores.
    fn files(counts: [usize; 4]) -> BTreeMap<String, String> {
        let [sockets, clusters, cores, threads] = counts;
        let all = sockets * clusters * cores;
        let cpus = all * threads;
        let list = |is: &dyn Fn(usize) -> bool| {
            let cpus: Vec<_> = (0..cpus).filter(|cpu| is(*cpu)).map(|n| n.to_string()).collect();
            cpus.join(",")
        };
        let mut files = BTreeMap::new();
        let mut put = |name: String, text: String| drop(files.insert(name, text));
        put("/proc/self/status".into(), format!("Name:\tx\nCpus_allowed_list:\t0-{}\n", cpus - 1));
        put("/proc/cpuinfo".into(), "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n".into());
        for cpu in 0..cpus {
            let core = cpu % all;
            let at = format!("{CPUS}/cpu{cpu}");
            let socket = core / cores / clusters;
            put(format!("{at}/topology/physical_package_id"), socket.to_string());
            let shares_core = list(&|other| other % all == core);
            put(format!("{at}/topology/thread_siblings_list"), shares_core.clone());
            let cluster = list(&|other| other % all / cores == core / cores);
            let caches = [
                (0, 1, "Data", "48K", &shares_core),
                (1, 1, "Instruction", "32K", &shares_core),
                (2, 2, "Unified", "2M", &shares_core),
                (3, 3, "Unified", "32768K", &cluster),
            ];
            for (index, level, kind, size, shared) in caches {
                let level = format!("{level}");
                let of = [
                    ("level", &*level),
                    ("type", kind),
                    ("size", size),
                    ("coherency_line_size", "64"),
                    ("shared_cpu_list", shared),
                ];
                for (name, text) in of {
                    put(format!("{at}/cache/index{index}/{name}"), text.into());
                }
            }
        }
        files
    }

    fn ask(files: &BTreeMap<String, String>) -> Shape {
        Shape::ask(&|name| files.get(name).cloned())
    }

    #[test]
    fn even_machines_are_described_as_they_are() {
        for counts in [[1, 1, 1, 1], [1, 1, 2, 1], [2, 3, 4, 2], [1, 2, 8, 1], [4, 1, 1, 2]] {
            let shape = ask(&files(counts));
            let found = [shape.sockets, shape.clusters, shape.cores, shape.threads];
            assert_eq!(found.map(usize::from), counts);
            assert_eq!((shape.remarks, &*shape.processor), (vec![], "Some CPU @ 3 GHz"));
            let bytes = (shape.l1_bytes, shape.l2_bytes, shape.llc_bytes, shape.line_bytes);
            assert_eq!(bytes, (48 << 10, 2 << 20, Some(32 << 20), 64));
        }
    }

    #[test]
    fn pairs_are_told_by_their_distance() {
        let shape = ask(&files([2, 2, 2, 2])); // 8 cores; processors 8 to 15 are second threads.
        let count = |distance| shape.pairs(distance, usize::MAX).len();
        assert_eq!(Distance::ALL.map(count), [8, 16, 32, 64]);
        assert_eq!(shape.pairs(Distance::Sibling, 2), [[0, 8], [4, 12]]);
        assert_eq!(shape.pairs(Distance::Near, 1), [[0, 1]]);
        assert_eq!(shape.pairs(Distance::Far, 1), [[0, 2]]);
        assert_eq!(shape.pairs(Distance::Remote, 1), [[0, 4]]);
        assert_eq!(shape.some_cpus(4), [0, 4, 8, 12]);
        let single = ask(&files([1, 1, 1, 1]));
        assert_eq!(Distance::ALL.map(|distance| single.pairs(distance, 9).len()), [0; 4]);
    }

    #[test]
    fn a_machine_that_tells_nothing_is_one_processor() {
        let shape = Shape::ask(&|_| None);
        assert_eq!([shape.sockets, shape.clusters, shape.cores, shape.threads], [1; 4]);
        assert_eq!(shape.places.len(), 1);
        assert_eq!((shape.l1_bytes, shape.llc_bytes), (L1_BYTES, None));
        assert_eq!(shape.remarks.len(), 1, "{:?}", shape.remarks);
        assert_eq!(shape.processor, "a processor without a name");
    }

    #[test]
    fn missing_files_and_forbidden_processors() {
        let mut files = files([1, 2, 4, 2]);
        files.retain(|name, _| !name.contains("/cache/"));
        files.insert("/proc/self/status".into(), "Cpus_allowed_list:\t0-2,8,10\n".into());
        files.insert("/proc/cpuinfo".into(), "CPU implementer\t: 0x41\nCPU part\t: 0xd4f".into());
        let shape = ask(&files);
        let cpus: Vec<_> = shape.places.iter().map(|place| place.cpu).collect();
        assert_eq!((cpus, &*shape.processor), (vec![0, 1, 2, 8, 10], "Arm 0x41 0xd4f"));
        assert_eq!(shape.pairs(Distance::Sibling, 9), [[0, 8], [2, 10]]);
        // Five processors on three cores: two threads in each come nearest.
        let grid = [shape.sockets, shape.clusters, shape.cores, shape.threads];
        assert_eq!(grid, [1, 1, 3, 2]);
        assert!(shape.remarks[0].contains("no even grid"), "{:?}", shape.remarks);
    }

    #[test]
    fn the_nearest_grid() {
        assert_eq!(grid([2, 3, 14, 20]), [2, 2, 4, 1]);
        assert_eq!(grid([1, 1, 24, 32]), [1, 1, 24, 1], "sixteen of 24 cores have one thread");
        assert_eq!(grid([0, 0, 0, 0]), [1; 4]);
    }
}
