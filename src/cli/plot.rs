//! Plots as self-contained SVG: what `perf --plot` and `scripts/bench` draw.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde::Deserialize;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 180.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;
/// Colours that people with any colour vision can tell apart (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// Draw a plot, described in JSON on standard input, as SVG on standard output.
#[derive(clap::Args, Debug)]
pub struct PlotArgs {
    /// Write it to this file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Draws.
pub fn run(args: &PlotArgs) -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("standard input")?;
    let plot: Plot = serde_json::from_str(&text).context("the description of the plot")?;
    match &args.output {
        Some(path) => plot.save(path)?,
        None => print!("{}", plot.svg()),
    }
    Ok(ExitCode::SUCCESS)
}

/// An axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// What it shows, with its unit.
    pub label: String,
    /// Logarithmic; else from zero.
    #[serde(default)]
    pub log: bool,
}

/// A line of points.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// Each with a word beside it, which may be empty.
    pub points: Vec<(f64, f64, String)>,
}

/// A plot.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From below.
    pub y: Axis,
    /// In the order of the legend.
    pub series: Vec<Series>,
}

/// How values become places.
struct Scale {
    log: bool,
    from: f64,
    to: f64,
    /// Pixels at both ends.
    start: f64,
    end: f64,
}

impl Scale {
    fn new(axis: &Axis, values: impl Iterator<Item = f64> + Clone, start: f64, end: f64) -> Scale {
        let usable = values.filter(|&value| value.is_finite() && (!axis.log || value > 0.0));
        let most = usable.clone().fold(f64::NEG_INFINITY, f64::max);
        let least = usable.fold(f64::INFINITY, f64::min);
        if !most.is_finite() {
            return Scale { log: axis.log, from: 1.0, to: 10.0, start, end };
        }
        let (from, to) = if axis.log {
            (step_down(least * 0.999), step_up(most * 1.001))
        } else {
            (0.0, if most > 0.0 { most * 1.08 } else { 1.0 })
        };
        Scale { log: axis.log, from, to, start, end }
    }

    fn place(&self, value: f64) -> f64 {
        let part = if self.log {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.start + part.clamp(0.0, 1.0) * (self.end - self.start)
    }

    fn ticks(&self) -> Vec<f64> {
        let mut ticks = Vec::new();
        if self.log {
            let mut tick = self.from;
            while tick <= self.to * 1.0001 {
                ticks.push(tick);
                tick = step_up(tick * 1.001);
            }
            // Of a wide range only the powers of ten.
            if ticks.len() > 9 {
                ticks.retain(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-6);
            }
        } else {
            let step = step_up((self.to - self.from) / 8.0);
            let count = ((self.to - self.from) / step) as u32;
            ticks.extend((0..=count).map(|index| self.from + f64::from(index) * step));
        }
        ticks
    }
}

/// The least of 1, 2, 5, 10, 20, 50, ... that is not below `value`.
fn step_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|step| step * power).find(|&step| step >= value).unwrap_or(10.0 * power)
}

/// The greatest of them that is not above `value`.
fn step_down(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|step| step * power).find(|&step| step <= value).unwrap_or(power)
}

/// 1500000 as 1.5M.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Plot {
    /// The plot as an SVG file without references to anything else.
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Scale::new(&self.x, points().map(|point| point.0), LEFT, WIDTH - RIGHT);
        let y = Scale::new(&self.y, points().map(|point| point.1), HEIGHT - BOTTOM, TOP);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
            escape(&self.title)
        );
        self.grid(&mut out, &x, &y);
        for (index, series) in self.series.iter().enumerate() {
            draw(&mut out, index, series, &x, &y);
        }
        out += "</svg>\n";
        out
    }

    fn grid(&self, out: &mut String, x: &Scale, y: &Scale) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let line = |x1: f64, y1: f64, x2: f64, y2: f64| {
            format!("<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"#ddd\"/>\n")
        };
        let word = |x: f64, y: f64, anchor: &str, text: &str| {
            format!(
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#444\">{}</text>\n",
                escape(text)
            )
        };
        for tick in x.ticks() {
            let at = x.place(tick);
            *out += &line(at, TOP, at, bottom);
            *out += &word(at, bottom + 17.0, "middle", &short(tick));
        }
        for tick in y.ticks() {
            let at = y.place(tick);
            *out += &line(LEFT, at, right, at);
            *out += &word(LEFT - 7.0, at + 4.0, "end", &short(tick));
        }
        *out += &word((LEFT + right) / 2.0, HEIGHT - 12.0, "middle", &self.x.label);
        let middle = (TOP + bottom) / 2.0;
        let label = word(16.0, middle, "middle", &self.y.label);
        *out += &label.replacen("<text", &format!("<text transform=\"rotate(-90 16 {middle})\""), 1);
    }

    /// Writes it to a file.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, self.svg()).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn draw(out: &mut String, index: usize, series: &Series, x: &Scale, y: &Scale) {
    let colour = COLOURS[index % COLOURS.len()];
    let mut path = String::new();
    let mut marks = String::new();
    for (at, value, label) in &series.points {
        let drawable = |scale: &Scale, value: f64| value.is_finite() && (!scale.log || value > 0.0);
        if !drawable(x, *at) || !drawable(y, *value) {
            continue;
        }
        let (cx, cy) = (x.place(*at), y.place(*value));
        let _ = write!(path, "{}{cx:.1} {cy:.1}", if path.is_empty() { "M" } else { "L" });
        let _ = writeln!(
            marks,
            "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\" fill=\"{colour}\"><title>{}: {}, {}</title></circle>",
            escape(&series.name),
            short(*at),
            short(*value)
        );
        if !label.is_empty() {
            let _ = writeln!(
                marks,
                "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\" fill=\"{colour}\">{}</text>",
                cx + 5.0,
                cy - 5.0,
                escape(label)
            );
        }
    }
    let _ = writeln!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>");
    *out += &marks;
    let (at, top) = (WIDTH - RIGHT + 14.0, TOP + 12.0 + 18.0 * index as f64);
    let _ = writeln!(
        out,
        "<rect x=\"{at}\" y=\"{:.1}\" width=\"12\" height=\"3\" fill=\"{colour}\"/>\
         <text x=\"{:.1}\" y=\"{top}\">{}</text>",
        top - 5.0,
        at + 18.0,
        escape(&series.name)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64, String)>) -> Plot {
        Plot {
            title: "a < b".to_owned(),
            x: Axis { label: "IOPS".to_owned(), log: false },
            y: Axis { label: "p50 in us".to_owned(), log: true },
            series: vec![Series { name: "ours & theirs".to_owned(), points }],
        }
    }

    #[test]
    fn points_are_where_their_values_are() {
        let svg = plot(vec![(0.0, 10.0, "QD 1".to_owned()), (500_000.0, 100.0, String::new())]).svg();
        // x from 0 to 540 k over 72..580; y from 5 to 200 over 428..44, logarithmic.
        assert!(svg.contains("<path d=\"M72.0 355.8L542.4 116.2\""), "{svg}");
        assert!(svg.contains(">QD 1<") && svg.contains("a &lt; b") && svg.contains("ours &amp; theirs"));
        assert!(svg.contains(">100k<") && svg.contains(">50<"));
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("href") && !svg.contains("NaN"));
    }

    #[test]
    fn what_has_no_place_is_left_out() {
        for points in [vec![], vec![(0.0, 0.0, String::new())], vec![(f64::NAN, 5.0, String::new())]] {
            let svg = plot(points).svg();
            assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<circle"), "{svg}");
        }
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([step_up(1.0), step_up(1.1), step_up(3.0), step_up(60.0)], [1.0, 2.0, 5.0, 100.0]);
        assert_eq!([step_down(1.0), step_down(9.9), step_down(0.3)], [1.0, 5.0, 0.2]);
        assert_eq!([short(1.5e6), short(20.0), short(0.5), short(1000.0)], ["1.5M", "20", "0.5", "1k"]);
    }
}
