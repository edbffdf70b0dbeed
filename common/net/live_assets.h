// The files of common/net/live/, in the program. A build makes assets.cc from assets.cc.in.
#pragma once

namespace foreshard {

extern const char kLiveHtml[];
extern const char kLiveCss[];
extern const char kLiveJs[];

}  // namespace foreshard
