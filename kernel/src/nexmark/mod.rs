//! NEXMark's events, equal to Apache Beam's byte for byte. An event follows from its number and the configuration
//! alone: no state is carried from one to the next, so any range can be made anywhere, in any cut.

mod batch;
mod config;
mod draw;
mod event;
mod lines;
mod random;

pub use batch::{Column, batch};
pub use config::{Config, Settings};
pub use event::Kind;
pub use lines::{json_lines, text_lines};
