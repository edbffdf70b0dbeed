#include "tools/live_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace foreshard {
namespace {

constexpr size_t kDefaultColumns = 100;
constexpr size_t kDefaultRows = 24;

}  // namespace

LiveText::LiveText(std::FILE* out) : out_(out) {
  const char* terminal = std::getenv("TERM");
  terminal_ = isatty(fileno(out)) != 0 && terminal != nullptr &&
              std::string_view(terminal) != "dumb" && *terminal != '\0';
}

size_t LiveText::columns() const {
  winsize size = {};
  return ioctl(fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1
                                                                        : kDefaultColumns;
}

size_t LiveText::rows() const {
  winsize size = {};
  return ioctl(fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_row > 1 ? size.ws_row - 1
                                                                        : kDefaultRows;
}

void LiveText::Erase() {
  if (drawn_lines_ > 0) std::fprintf(out_, "\x1b[%zuA\x1b[J", drawn_lines_);
  drawn_lines_ = 0;
}

void LiveText::Draw(const std::vector<std::string>& lines) {
  Erase();
  const size_t width = columns();
  for (const std::string& line : lines) {
    std::fprintf(out_, "%.*s\n", static_cast<int>(std::min(line.size(), width)), line.data());
  }
  drawn_lines_ = lines.size();
  std::fflush(out_);
}

void LiveText::Notice(std::string_view text) {
  Erase();
  std::fprintf(out_, "%.*s\n", static_cast<int>(text.size()), text.data());
  std::fflush(out_);
}

void LiveText::Close() {
  drawn_lines_ = 0;
  std::fflush(out_);
}

}  // namespace foreshard
