//! Which regions take memory, as the kernel counts. One test, since stacks of other threads may come to
//! lie beside a region, and then count with it.

use reactors::memory::Region;

/// KiB of private memory that the mapping around `region` takes.
fn anonymous_kib(region: &Region) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = smaps.lines();
    let address = |text: &str| u64::from_str_radix(text, 16).ok();
    let of_region = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some((address(from)?..address(to)?).contains(&region.addr()))
    };
    assert!(lines.any(|line| of_region(line) == Some(true)));
    let field = lines.find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    field.trim().trim_end_matches(" kB").parse().unwrap()
}

fn is_zero(region: &Region) -> bool {
    region.with_bytes(0, region.len_bytes(), |bytes| bytes.iter().all(|&byte| byte == 0)).unwrap()
}

#[test]
fn zeroes_take_none_and_pinned_pages_stay() {
    let zeroes = Region::zeroes(256 << 10).unwrap();
    assert!(is_zero(&zeroes));
    assert_eq!(anonymous_kib(&zeroes), 0);

    const LEN: usize = 64 << 20;
    let region = Region::anonymous(LEN).unwrap();
    let stays = || {
        region.fill(0, LEN, 1).unwrap();
        region.clear(0, LEN).unwrap();
        assert!(is_zero(&region));
        anonymous_kib(&region) >= LEN as u64 >> 10
    };
    let (first, second) = (region.pin(), region.pin());
    assert!(stays());
    drop(first);
    assert!(stays(), "one is left");
    drop(second);
    assert!(!stays());
}
