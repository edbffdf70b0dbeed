// Lines that a command shows while it works: redrawn in place on a terminal.
//
//   LiveText text(stdout);
//   text.Notice("worker-1 has left");             // stays
//   if (text.terminal()) text.Draw({"50 %", "..."});  // takes the last block's place
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

// Thread-compatible.
class LiveText {
 public:
  explicit LiveText(std::FILE* out);
  ~LiveText() { Close(); }
  LiveText(const LiveText&) = delete;
  LiveText& operator=(const LiveText&) = delete;

  // Whether what is drawn can be drawn over: a terminal that is not "dumb".
  bool terminal() const { return terminal_; }
  // What fits into a line.
  size_t columns() const;
  // What fits onto the screen.
  size_t rows() const;

  // Shows these lines, each cut to the terminal, in place of those drawn before.
  void Draw(const std::vector<std::string>& lines);
  // A line that stays, above the block.
  void Notice(std::string_view text);
  // Leaves the block as it is and goes below it. Idempotent.
  void Close();

 private:
  void Erase();

  std::FILE* out_;
  bool terminal_;
  size_t drawn_lines_ = 0;
};

}  // namespace foreshard
