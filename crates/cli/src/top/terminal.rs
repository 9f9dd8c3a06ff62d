//! The terminal: taken as a whole, and given back however this ends.

use super::screen::{Palette, draw};
use super::view::{View, ViewAction};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use std::io::{self, Stdout};
use std::time::Duration;

/// The terminal while it is ours. It is given back when this is dropped, and before a panic says its words.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

/// What came from the keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    Quit,
    ViewAction(ViewAction),
}

fn restore() {
    // What can't be restored can't be said either: the terminal is gone.
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}

impl Screen {
    /// Takes the terminal. Errors: those of the system; the terminal is as before then.
    pub fn open() -> io::Result<Screen> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
        enable_raw_mode()?;
        let opened = execute!(io::stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())))
            .inspect_err(|_| restore())?;
        Ok(Screen { terminal: opened })
    }

    pub fn size(&self) -> (u16, u16) {
        self.terminal.size().map_or((0, 0), |size| (size.width, size.height))
    }

    pub fn draw(&mut self, view: &View, palette: Palette) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame, view, palette)).map(drop)
    }

    /// The next key that means something; `None` when there is none now.
    pub fn input(&mut self) -> io::Result<Option<Input>> {
        while event::poll(Duration::ZERO)? {
            let Event::Key(key) = event::read()? else { continue };
            if key.kind != KeyEventKind::Press {
                continue;
            }
            if let Some(input) = meaning(key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
                return Ok(Some(input));
            }
        }
        Ok(None)
    }
}

fn meaning(code: KeyCode, control: bool) -> Option<Input> {
    Some(match code {
        KeyCode::Char('c') if control => Input::Quit,
        KeyCode::Char('q') => Input::Quit,
        KeyCode::Char('s') => Input::ViewAction(ViewAction::Sort),
        KeyCode::Char('r') => Input::ViewAction(ViewAction::Reverse),
        KeyCode::Char(' ' | 'p') => Input::ViewAction(ViewAction::Pause),
        KeyCode::Char('+') => Input::ViewAction(ViewAction::Slower),
        KeyCode::Char('-') => Input::ViewAction(ViewAction::Faster),
        KeyCode::Up | KeyCode::Char('k') => Input::ViewAction(ViewAction::Up),
        KeyCode::Down | KeyCode::Char('j') => Input::ViewAction(ViewAction::Down),
        KeyCode::Esc => Input::ViewAction(ViewAction::All),
        _ => return None,
    })
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}
