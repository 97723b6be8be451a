//! Odd arguments of the calls that send, as programs pass them by mistake: a program gets the same
//! answers with the library as without it, and the same datagrams leave.

use super::unusual::both;

/// What the programs begin with. Each row is a call of a new socket, `fresh_one`, of IPv4 or IPv6,
/// connected or not, as `is_six` and `is_linked` say; `name` is its destination. `ROW` prints what
/// the call returns, and the lengths of the datagrams that come.
const BEGIN: &str = r#"
#include <fcntl.h>
#include <limits.h>
#include <netinet/udp.h>
#include <stdint.h>
static struct sockaddr_in four = {.sin_family = AF_INET};
static struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
static int sinks[2], is_six, is_linked;
static void *name;
static socklen_t name_len;
static struct iovec one = {"word", 4};
static int fresh_one(void) {
    /* Only this socket is open beside those that receive. */
    static int last = -1;
    if (last >= 0) close(last);
    last = socket(is_six ? AF_INET6 : AF_INET, SOCK_DGRAM, 0);
    name = is_six ? (void *)&six : (void *)&four;
    name_len = is_six ? sizeof six : sizeof four;
    if (is_linked && connect(last, name, name_len)) exit(3);
    return last;
}
static void row(const char *what, long number, long done) {
    printf("%s %ld: %ld %s", what, number, done, done < 0 ? strerrorname_np(errno) : "");
    static char room[66000];
    for (int i = 0; i < 2; i++)
        for (ssize_t len; (len = recv(sinks[i], room, sizeof room, MSG_DONTWAIT)) >= 0;)
            printf(" %zd", len);
    puts("");
}
#define ROW(what, number, call) do { int s = fresh_one(); row(what, number, call); } while (0)
static int message(int s, void *to, socklen_t len, struct iovec *parts, size_t count, int flags) {
    struct msghdr header = {to, len, parts, count, 0, 0, 0};
    return sendmsg(s, &header, flags);
}
static void rows(void);
int main(void) {
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (is_six = 0; is_six < 2; is_six++) {
        int s = sinks[is_six] = fresh_one();
        if (bind(dup2(s, 50 + is_six), name, name_len)) return 4;
        sinks[is_six] = 50 + is_six;
        getsockname(50 + is_six, name, &name_len);
    }
    for (is_six = 0; is_six < 2; is_six++)
        for (is_linked = 0; is_linked < 2; is_linked++) {
            printf("%s %s\n", is_six ? "v6" : "v4", is_linked ? "connected" : "not connected");
            rows();
        }
}
"#;

/// Runs a program without the library and with it, and asserts that it prints the same. Returns
/// what it prints, without a compiler nothing.
fn same(name: &str, rows: &str) -> Option<String> {
    let [plain, shaped] = both(name, &format!("{BEGIN}{rows}"), "pfifo limit 100")?;
    for (plain, shaped) in plain.0.lines().zip(shaped.0.lines()) {
        assert_eq!(shaped, plain, "{name}");
    }
    assert_eq!(shaped.0, plain.0);
    Some(plain.0)
}

/// `sendto` takes a length of 0 for a wrong address, and `sendmsg` for none.
#[test]
fn addresses_of_all_lengths() {
    const ROWS: &str = r#"
static void rows(void) {
    const char *kinds[] = {"IPv4", "IPv6", "IPv4 without family", "IPv6 without family"};
    socklen_t more[] = {127, 128, 129, 1000, INT_MAX, INT_MIN, -1};
    for (int kind = 0; kind < 4; kind++)
        for (int i = 0; i < 38; i++) {
            struct sockaddr_storage to = {0};
            if (kind % 2) memcpy(&to, &six, sizeof six); else memcpy(&to, &four, sizeof four);
            if (kind > 1) to.ss_family = AF_UNSPEC;
            socklen_t len = i < 31 ? i : more[i - 31];
            printf("%s ", kinds[kind]);
            ROW("sendto", len, sendto(s, "word", 4, 0, (void *)&to, len));
            ROW("sendmsg", len, message(s, &to, len, &one, 1, 0));
        }
    ROW("no address with a length", 16, sendto(s, "word", 4, 0, 0, 16));
    ROW("an address that cannot be read", 16, sendto(s, "word", 4, 0, (void *)1, 16));
}
"#;
    let Some(told) = same("addresses", ROWS) else { return };
    let connected = told.split_once("v4 connected\n").expect("it is printed").1;
    let begin = "IPv4 sendto 0: -1 EINVAL\nsendmsg 0: 4  4\nIPv4 sendto 1: -1 EINVAL\n";
    assert!(connected.starts_with(begin), "{connected}");
}

/// What has no address in memory, and lengths that no memory has: which error comes first depends
/// on the function.
#[test]
fn payloads_of_all_lengths() {
    const ROWS: &str = r#"
static void rows(void) {
    size_t lens[] = {0, 1, 65507, 65508, 65527, 65528, 65535, 65536, 100000, INT_MAX,
        1UL << 31, 1UL << 32, INT64_MAX, 1UL << 63, SIZE_MAX};
    static char big[65536];
    for (int i = 0; i < 15; i++)
        for (int is_null = 0; is_null < 2; is_null++) {
            /* The kernel refuses more than there is before it reads. */
            void *start = is_null ? 0 : big;
            size_t len = lens[i];
            printf("%s %zu\n", is_null ? "nowhere" : "payload", len);
            ROW("sendto", i, sendto(s, start, len, 0, name, name_len));
            ROW("send", i, send(s, start, len, 0));
            ROW("write", i, write(s, start, len));
            for (int count = 1; count < 4; count++) {
                struct iovec parts[3] = {{start, len}, one, {start, len}};
                ROW("sendmsg", count, message(s, name, name_len, parts, count, 0));
                ROW("writev", count, writev(s, parts, count));
            }
        }
}
"#;
    let Some(told) = same("payloads", ROWS) else { return };
    let row = "nowhere 65508\nsendto 3: -1 EMSGSIZE\n";
    assert!(told.contains(row), "{told}");
}

#[test]
fn parts_and_control_messages_of_all_lengths() {
    const ROWS: &str = r#"
static void controls(int kind, void *control) {
    size_t lens[] = {0, 1, 15, 16, 17, 18, 20, 24, 64, 4000, 60000, INT_MAX, 1UL << 31, SIZE_MAX};
    for (int i = 0; i < 14; i++) {
        struct msghdr header = {name, name_len, &one, 1, control, lens[i], -1};
        printf("%d ", kind);
        ROW("control", i, sendmsg(s, &header, 0));
    }
}
static void rows(void) {
    static struct iovec parts[2000];
    for (int i = 0; i < 2000; i++) parts[i] = (struct iovec){"x", 1};
    long counts[] = {0, 1, 1024, 1025, 2000, 1L << 31, -1};
    for (int i = 0; i < 7; i++) {
        void *lists[] = {parts, 0, (void *)1};
        for (int list = 0; list < 3; list++) {
            printf("%d ", list);
            ROW("sendmsg", counts[i], message(s, name, name_len, lists[list], counts[i], 0));
            ROW("writev", counts[i], writev(s, lists[list], counts[i]));
        }
    }
    struct iovec odd[] = {{0, 0}, {0, 0}, {"word", -4}};
    ROW("empty parts", 2, message(s, name, name_len, odd, 2, 0));
    ROW("writev", 2, writev(s, odd, 2));
    ROW("a negative length", 3, message(s, name, name_len, odd, 3, 0));
    ROW("writev", 3, writev(s, odd, 3));
    ROW("no header", 0, sendmsg(s, 0, 0));
    ROW("no header", 1, sendmsg(s, (void *)1, 0));
    /* A library that looks at the parts of each `writev` would end the program here. */
    int null = open("/dev/null", O_WRONLY);
    ROW("a file", 0, writev(null, (void *)1, 1));
    close(null);
    static _Alignas(8) char control[60000];
    struct cmsghdr *head = (void *)control;
    controls(0, 0);
    controls(1, (void *)1);
    controls(2, control);
    *head = (struct cmsghdr){20, is_six ? IPPROTO_IPV6 : IPPROTO_IP, is_six ? IPV6_TCLASS : IP_TOS};
    controls(3, control);
    *head = (struct cmsghdr){18, SOL_UDP, UDP_SEGMENT};
    control[16] = 2;
    controls(4, control);
    *head = (struct cmsghdr){15, SOL_UDP, UDP_SEGMENT};
    controls(5, control);
    memset(control, -1, sizeof control);
    controls(6, control);
    memset(control, 0, sizeof control);
}
"#;
    let Some(told) = same("parts", ROWS) else { return };
    assert!(told.contains("a file 0: -1 EFAULT\n"), "{told}");
}

/// A datagram that `MSG_MORE` begins is one with the message that ends it. A call that only checks
/// (`MSG_PROBE`) sends nothing.
#[test]
fn all_flags() {
    const ROWS: &str = r#"
static void rows(void) {
    for (int bit = 0; bit < 32; bit++) {
        unsigned flags = 1U << bit;
        printf("%#x\n", flags);
        ROW("sendto", 4, sendto(s, "word", 4, flags, name, name_len));
        ROW("sendto", 0, sendto(s, "", 0, flags, name, name_len));
        ROW("send", 4, send(s, "word", 4, flags));
        ROW("sendmsg", 4, message(s, name, name_len, &one, 1, flags));
        struct msghdr header = {name, name_len, &one, 1, 0, 0, 0};
        struct mmsghdr two[] = {{header, 77}, {header, 77}};
        ROW("sendmmsg", 2, sendmmsg(s, two, 2, flags));
        printf("%u %u\n", two[0].msg_len, two[1].msg_len);
        int s = fresh_one();
        sendto(s, "be", 2, flags, name, name_len);
        sendto(s, "gun", 3, flags, name, name_len);
        row("end", 4, sendto(s, "word", 4, 0, name, name_len));
        row("next", 1, sendto(s, "x", 1, 0, name, name_len));
    }
    ROW("all", 4, sendto(s, "word", 4, -1, name, name_len));
}
"#;
    let Some(told) = same("flags", ROWS) else { return };
    assert_eq!(told.matches("\nend 4: 4  9\nnext 1: 1  1\n").count(), 4, "{told}");
}

/// A message that is refused, or has no parts, does not end a datagram that `MSG_MORE` began.
#[test]
fn what_ends_no_datagram() {
    const ROWS: &str = r#"
static void rows(void) {
    static char big[70000];
    for (int way = 0; way < 7; way++) {
        int s = fresh_one();
        sendto(s, "be", 2, MSG_MORE, name, name_len);
        struct iovec none = {"word", 0}, huge = {big, sizeof big};
        struct mmsghdr list = {{name, name_len, &huge, 1, 0, 0, 0}, 0};
        int done = 0;
        if (way == 0) done = writev(s, &none, 1);
        if (way == 1) done = message(s, name, name_len, &huge, 1, 0);
        if (way == 2) done = sendto(s, big, sizeof big, 0, name, name_len);
        if (way == 3) done = sendmmsg(s, &list, 1, 0);
        if (way == 4) done = sendto(s, "word", 4, MSG_OOB, name, name_len);
        if (way == 5) done = message(s, name, name_len, &huge, 1, MSG_MORE);
        if (way == 6) done = sendto(s, "", 0, 0, name, name_len);
        row("between", way, done);
        row("end", 4, sendto(s, "word", 4, 0, name, name_len));
        row("next", 1, sendto(s, "x", 1, 0, name, name_len));
    }
}
"#;
    let Some(told) = same("between", ROWS) else { return };
    // In IPv6, the kernel forgets what it has when it refuses so long a message.
    let refused = [1, 2, 3, 5].map(|way| (format!("{way}: -1 EMSGSIZE"), 2));
    for (between, times) in [("0: 0 ".to_owned(), 4)].into_iter().chain(refused) {
        let rows = format!("between {between}\nend 4: 4  6\nnext 1: 1  1\n");
        assert_eq!(told.matches(&rows).count(), times, "{rows}: {told}");
    }
}

#[test]
fn numbers_of_messages_and_descriptors() {
    const ROWS: &str = r#"
static void rows(void) {
    static struct mmsghdr all[1100];
    struct msghdr header = {name, name_len, &one, 1, 0, 0, 0};
    unsigned counts[] = {0, 1, 2, 1024, 1025, INT_MAX, INT_MIN, -1};
    for (int i = 0; i < 8; i++) {
        for (int at = 0; at < 1100; at++) all[at] = (struct mmsghdr){header, 77};
        /* A message of a long list is wrong, or more would be sent than can be received. */
        if (i > 2) all[40].msg_hdr.msg_namelen = 3;
        errno = 0;
        ROW("sendmmsg", counts[i], sendmmsg(s, all, counts[i], 0));
        printf("%d %u %u %u\n", errno, all[0].msg_len, all[1].msg_len, all[40].msg_len);
        ROW("no list", counts[i], sendmmsg(s, 0, counts[i], 0));
        ROW("no list", counts[i], sendmmsg(s, (void *)1, counts[i], 0));
    }
    for (int wrong = 0; wrong < 3; wrong++) {
        for (int at = 0; at < 3; at++) all[at] = (struct mmsghdr){header, 77};
        all[wrong].msg_hdr.msg_namelen = 3;
        int s = fresh_one();
        errno = 0;
        int done = sendmmsg(s, all, 3, 0);
        printf("%d ", errno);
        row("one is wrong", wrong, done);
        printf("%u %u %u\n", all[0].msg_len, all[1].msg_len, all[2].msg_len);
    }
    int path = open("/dev/null", O_PATH), null = open("/dev/null", O_WRONLY);
    int files[] = {-1, INT_MIN, AT_FDCWD, INT_MAX, 900, path, null};
    for (int i = 0; i < 7; i++) {
        ROW("sendto", i, sendto(files[i], "word", 4, 0, name, name_len));
        ROW("send", i, send(files[i], "word", 4, 0));
        ROW("write", i, write(files[i], "word", 4));
        ROW("writev", i, writev(files[i], &one, 1));
        ROW("sendmsg", i, message(files[i], name, name_len, &one, 1, 0));
        ROW("sendmmsg", i, sendmmsg(files[i], all, 0, 0));
        ROW("sendmmsg", i, sendmmsg(files[i], all, 2, 0));
    }
    close(path);
    close(null);
}
"#;
    let Some(told) = same("numbers", ROWS) else { return };
    assert!(told.contains("0 one is wrong 1: 1  4\n4 77 77\n"), "{told}");
}
