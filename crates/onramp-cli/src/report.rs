//! Reports of results, for people and for programs.

pub(crate) mod chart;
pub(crate) mod direction;
pub(crate) mod exec;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod lab;
pub(crate) mod meaning;
pub(crate) mod page;
pub(crate) mod replayed;
pub(crate) mod sent;
pub(crate) mod shape;
pub(crate) mod simulated;
pub(crate) mod table;
pub(crate) mod traffic;
pub(crate) mod wire;
