//! The look of shapes, in the light and in the dark theme.

use std::fmt::Write;

/// The role of a shape in a chart. The role decides how the shape looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Paper,
    Grid,
    Axis,
    /// A thin line that leads from the end of a line of the chart to the name of that line.
    Leader,
    Whisker,
    Bar,
    OursBar,
    /// The line of a series; the number of the series decides on the colour of its line and
    /// markers.
    Line(usize),
    /// The line of a highlighted series. All highlighted series have the same colour; the number of
    /// the series decides on the dashes of its line.
    OursLine(usize),
    /// The whisker at a point of a line, from the least to the greatest value over the rounds.
    Range(usize),
    OursRange,
    Marker(usize),
    OursMarker,
    Text,
    SoftText,
    BoldText,
}

/// The colours and the line width of a shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) fill: Option<Ink>,
    pub(super) stroke: Option<Ink>,
    pub(super) width: f32,
}

/// A colour in the form 0xRRGGBB: one for the light theme, one for the dark theme.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ink {
    pub(super) light: u32,
    dark: u32,
}

impl Style {
    const ALL: [Self; 12] = [
        Self::Paper,
        Self::Grid,
        Self::Axis,
        Self::Leader,
        Self::Whisker,
        Self::Bar,
        Self::OursBar,
        Self::OursLine(0),
        Self::OursRange,
        Self::OursMarker,
        Self::Text,
        Self::SoftText,
    ];

    fn every() -> impl Iterator<Item = Self> {
        let series =
            (0..SERIES.len()).flat_map(|n| [Self::Line(n), Self::Range(n), Self::Marker(n)]);
        Self::ALL.into_iter().chain([Self::BoldText]).chain(series)
    }

    pub(super) fn look(self) -> Look {
        let fill = |ink| Look { fill: Some(ink), stroke: None, width: 0.0 };
        let stroke = |ink, width| Look { fill: None, stroke: Some(ink), width };
        match self {
            Self::Paper => fill(PAPER),
            Self::Grid => stroke(LINE, 1.0),
            Self::Axis => stroke(SOFT, 1.0),
            Self::Leader => stroke(SOFT, 0.6),
            Self::Whisker => stroke(INK, 1.4),
            Self::Bar => fill(OTHER),
            Self::OursBar | Self::OursMarker => fill(OURS),
            Self::Line(n) => stroke(SERIES[n % SERIES.len()], 1.6),
            Self::OursLine(_) => stroke(OURS, 3.2),
            Self::Range(n) => stroke(SERIES[n % SERIES.len()], 1.0),
            Self::OursRange => stroke(OURS, 1.0),
            Self::Marker(n) => fill(SERIES[n % SERIES.len()]),
            Self::Text | Self::BoldText => fill(INK),
            Self::SoftText => fill(SOFT),
        }
    }

    /// Returns the name of the CSS class of shapes with this style.
    pub(super) fn class(self) -> String {
        match self {
            Self::Paper => "paper".to_owned(),
            Self::Grid => "grid".to_owned(),
            Self::Axis => "axis".to_owned(),
            Self::Leader => "leader".to_owned(),
            Self::Whisker => "whisker".to_owned(),
            Self::Bar => "bar".to_owned(),
            Self::OursBar => "ours-bar".to_owned(),
            Self::Line(n) => format!("line-{}", n % SERIES.len()),
            Self::OursLine(_) => "ours-line".to_owned(),
            Self::Range(n) => format!("range-{}", n % SERIES.len()),
            Self::OursRange => "ours-range".to_owned(),
            Self::Marker(n) => format!("marker-{}", n % SERIES.len()),
            Self::OursMarker => "ours-marker".to_owned(),
            Self::Text => "text".to_owned(),
            Self::SoftText => "soft-text".to_owned(),
            Self::BoldText => "bold-text".to_owned(),
        }
    }

    /// Returns the lengths of the dashes and gaps of a line, by which lines can be told apart
    /// without colours. An empty list means a solid line.
    pub(super) fn dashes(self) -> &'static [f32] {
        const DASHES: [&[f32]; 4] = [&[7.0, 3.0], &[], &[2.0, 2.5], &[9.0, 3.0, 2.0, 3.0]];
        const OURS_DASHES: [&[f32]; 5] =
            [&[], &[10.0, 4.0], &[3.0, 3.0], &[12.0, 3.0, 3.0, 3.0], &[6.0, 6.0]];
        match self {
            Self::Line(n) => DASHES[n % DASHES.len()],
            Self::OursLine(n) => OURS_DASHES[n % OURS_DASHES.len()],
            _ => &[],
        }
    }
}

/// Returns the CSS rules for all shapes below an element of class `chart`, in both themes.
pub(crate) fn css() -> String {
    let rules = |pick: fn(Ink) -> u32| {
        let mut rules = String::new();
        for style in Style::every() {
            let look = style.look();
            let fill = look.fill.map_or_else(|| "none".to_owned(), |ink| hex(pick(ink)));
            // The result of `write!` is ignored, because writing into a string cannot fail.
            let _ = write!(rules, ".chart .{}{{fill:{fill}", style.class());
            if let Some(ink) = look.stroke {
                let _ = write!(rules, ";stroke:{};stroke-width:{}", hex(pick(ink)), look.width);
            }
            rules.push('}');
        }
        rules
    };
    format!(
        ".chart text{{font:13px system-ui,'DejaVu Sans',sans-serif}}\
         .chart text.bold-text{{font-weight:600}}{}\n@media screen and \
         (prefers-color-scheme:dark){{{}}}\n",
        rules(|ink| ink.light),
        rules(|ink| ink.dark)
    )
}

fn hex(colour: u32) -> String {
    format!("#{colour:06x}")
}

const fn ink(light: u32, dark: u32) -> Ink {
    Ink { light, dark }
}

const PAPER: Ink = ink(0xff_ffff, 0x13_1a21);
const INK: Ink = ink(0x1c_2733, 0xe4_eaf0);
const SOFT: Ink = ink(0x5b_6b7b, 0x94_a5b5);
const LINE: Ink = ink(0xe3_e8ed, 0x2a_3641);
const OTHER: Ink = ink(0x9f_b1c2, 0x56_697b);
const OURS: Ink = ink(0x0b_7a75, 0x2f_b3ab);
/// Colours that colour-blind people can tell apart (after Okabe and Ito), darkened or lightened to
/// suit the background.
const SERIES: [Ink; 8] = [
    ink(0xc2_5200, 0xff_8a3c),
    ink(0x00_5fa8, 0x5a_b4ff),
    ink(0xa8_4c87, 0xe5_9cc9),
    ink(0x8a_6d00, 0xe0_bf3f),
    ink(0x4a_5563, 0xb7_c3cf),
    ink(0x2b_8fc4, 0x9a_d8f5),
    ink(0x7a_3b1d, 0xc9_8f6f),
    ink(0xd1_294f, 0xff_7a95),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the contrast of two colours, from their relative luminance, as WCAG 2.2 defines it.
    fn contrast(one: u32, other: u32) -> f64 {
        let luminance = |colour: u32| {
            let part = |shift: u32| {
                let value = f64::from((colour >> shift) & 0xff) / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * part(16) + 0.7152 * part(8) + 0.0722 * part(0)
        };
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn colours_can_be_told_from_the_paper() {
        for pick in [|ink: Ink| ink.light, |ink: Ink| ink.dark] {
            for ink in SERIES.into_iter().chain([OURS]) {
                assert!(contrast(pick(ink), pick(PAPER)) >= 3.0, "{ink:x?}");
            }
            for ink in [INK, SOFT] {
                assert!(contrast(pick(ink), pick(PAPER)) >= 4.5, "{ink:x?}");
            }
        }
    }

    #[test]
    fn the_style_sheet_knows_every_class_in_both_themes() {
        let css = css();
        for style in Style::every() {
            assert_eq!(css.matches(&format!(".chart .{}{{", style.class())).count(), 2);
        }
    }
}
