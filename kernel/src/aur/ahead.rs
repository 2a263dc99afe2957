//! What was read ahead: all rows that sessions which close next have in files. A session that grows is dropped from it.

/// The rows of one index entry.
pub struct Piece {
    pub run: u32,
    pub order: u64,
    pub rows: u32,
    pub bytes: Box<[u8]>,
}

struct Window {
    slot: u32,
    pieces: Vec<Piece>,
}

#[derive(Default)]
pub struct Ahead {
    windows: Vec<Option<Window>>,
    free: Vec<u32>,
    bytes: usize,
}

fn bytes_of(pieces: &[Piece]) -> usize {
    needed_bytes(
        pieces.len(),
        pieces.iter().map(|piece| piece.bytes.len()).sum(),
    )
}

/// What so many pieces of a session take, with so many bytes of rows.
pub fn needed_bytes(pieces: usize, row_bytes: usize) -> usize {
    row_bytes + pieces * size_of::<Piece>() + size_of::<Window>()
}

impl Ahead {
    pub fn len(&self) -> usize {
        self.windows.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns where the session's pieces are.
    pub fn insert(&mut self, slot: u32, pieces: Vec<Piece>) -> u32 {
        self.bytes += bytes_of(&pieces);
        let window = Some(Window { slot, pieces });
        match self.free.pop() {
            Some(place) => {
                self.windows[place as usize] = window;
                place
            }
            None => {
                self.windows.push(window);
                self.windows.len() as u32 - 1
            }
        }
    }

    pub fn remove(&mut self, place: u32) -> Vec<Piece> {
        let Some(window) = self.windows.get_mut(place as usize).and_then(Option::take) else {
            return Vec::new();
        };
        self.free.push(place);
        self.bytes -= bytes_of(&window.pieces);
        window.pieces
    }

    /// Each session of which rows are held, and what they take.
    pub fn held(&self) -> impl Iterator<Item = (u32, usize)> {
        let windows = self.windows.iter().flatten();
        windows.map(|window| (window.slot, bytes_of(&window.pieces)))
    }

    /// Runs were rewritten as one.
    pub fn moved(&mut self, from: &[u32], to: u32) {
        for window in self.windows.iter_mut().flatten() {
            for piece in &mut window.pieces {
                if from.contains(&piece.run) {
                    piece.run = to;
                }
            }
        }
    }
}
