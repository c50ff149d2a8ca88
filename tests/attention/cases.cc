#include "attention/cases.h"

#include <algorithm>
#include <array>

namespace onelane::attention_test {
namespace {

constexpr std::array kFormats = {ONELANE_KV_V4, ONELANE_KV_V41_FP8, ONELANE_KV_V41_FP4, ONELANE_KV_BF16};
constexpr std::array kOutputs = {ONELANE_OUT_BF16, ONELANE_OUT_FP8, ONELANE_OUT_FP8_GROUPED};

struct Widths {
  int window = 0, extra = 0;
};
struct Formats {
  onelane_kv_format window, extra;
};
constexpr Formats kV4{ONELANE_KV_V4, ONELANE_KV_V4};
constexpr Formats kV41{ONELANE_KV_V41_FP8, ONELANE_KV_V41_FP4};
constexpr Formats kBf16{ONELANE_KV_BF16, ONELANE_KV_BF16};

Case make_case(int rows, int heads, Widths widths, Formats formats, onelane_attention_output output) {
  Case spec;
  spec.shape = {.rows = rows,
                .heads = heads,
                .window_width = widths.window,
                .extra_width = widths.extra,
                .window_format = formats.window,
                .extra_format = formats.extra,
                .output = output,
                .splits = 0};
  spec.rope = output != ONELANE_OUT_BF16;
  return spec;
}

// FlashMLA's (keys, width, page) of either list.
struct Stream {
  int keys, width, page;
};
constexpr std::array<Stream, 8> kFlashMlaStreams = {{{512, 64, 2},
                                                     {512, 64, 64},
                                                     {512, 64, 69},
                                                     {1024, 576, 2},
                                                     {1024, 576, 61},
                                                     {2046, 2048, 2},
                                                     {2046, 2048, 64},
                                                     {2046, 2048, 576}}};

Case flashmla_case(int rows, int heads, const Stream& window, const Stream* extra, bool window_lengths,
                   bool extra_lengths) {
  Case spec = make_case(rows, heads, {window.width, extra != nullptr ? extra->width : 0}, kV4, ONELANE_OUT_BF16);
  spec.window_page = window.page;
  // Requests share a pool here; four of them have keys of their own.
  spec.window_records = 4 * window.keys;
  if (extra != nullptr) {
    spec.extra_page = extra->page;
    spec.extra_records = 4 * extra->keys;
  }
  spec.window_lengths = window_lengths ? Lengths::kRandom : Lengths::kNull;
  spec.extra_lengths = extra_lengths ? Lengths::kRandom : Lengths::kNull;
  return spec;
}

Group flashmla(bool full) {
  Group group{.name = "flashmla"};
  int turn = 0;
  for (const int heads : {64, 128}) {
    for (const int batch : {4, 74, 321}) {
      for (const int queries : {1, 3}) {
        for (size_t i = 0; i < kFlashMlaStreams.size(); ++i) {
          for (int flags = 0; flags < 8; ++flags) {
            // In turn: a stream meets every batch with another set of flags.
            if (!full && flags != (turn + static_cast<int>(i)) % 8) continue;
            const Stream& extra = kFlashMlaStreams[(i + static_cast<size_t>(turn)) % kFlashMlaStreams.size()];
            group.cases.push_back(flashmla_case(batch * queries, heads, kFlashMlaStreams[i],
                                                (flags & 1) != 0 ? &extra : nullptr, (flags & 2) != 0,
                                                (flags & 4) != 0));
          }
        }
        turn += 3;
      }
    }
  }
  return group;
}

Group flashmla_corners() {
  Group group{.name = "flashmla corners"};
  constexpr Stream kWindow{512, 64, 61};
  constexpr Stream kExtra{650, 576, 53};
  for (const int heads : {64, 128}) {
    for (const Sinks sinks : {Sinks::kNone, Sinks::kMixed}) {
      for (const bool extra : {false, true}) {
        for (const bool empty : {false, true}) {
          Case spec = flashmla_case(12, heads, kWindow, extra ? &kExtra : nullptr, true, true);
          spec.sinks = sinks;
          if (empty) {
            spec.window_lengths = spec.extra_lengths = Lengths::kZero;
          } else {
            spec.holes = 1;
          }
          group.cases.push_back(spec);
          spec.holes = 0.1;
          spec.window_lengths = extra ? Lengths::kZero : Lengths::kRandom;  // one list empty, the other not
          spec.extra_lengths = Lengths::kRandom;
          group.cases.push_back(spec);
        }
      }
    }
  }
  return group;
}

Group flashinfer() {
  Group group{.name = "flashinfer"};
  int turn = 0;
  for (const int heads : {8, 16, 32, 64, 128}) {
    for (const int width : {128, 192, 256, 512, 1024}) {
      for (const int rows : {1, 16, 64}) {
        Case spec = make_case(rows, heads, {width, 0}, kV4, ONELANE_OUT_BF16);
        spec.holes = 0.5;
        spec.sinks = ++turn % 2 == 0 ? Sinks::kNone : Sinks::kMixed;
        spec.window_lengths = turn % 3 == 0 ? Lengths::kRandom : Lengths::kNull;
        group.cases.push_back(spec);
      }
    }
    for (const int extra : {128, 512, 768, 1024, 1664}) {
      for (const int page : {64, 2}) {
        // Every third without a window list.
        Case spec = make_case(6, heads, {++turn % 3 == 0 ? 0 : 128, extra}, kV4, ONELANE_OUT_BF16);
        spec.extra_page = page;
        group.cases.push_back(spec);
      }
    }
  }
  return group;
}

Group production() {
  Group group{.name = "v4 production"};
  for (const int rows : {1, 2, 6, 8, 16, 32, 64, 128, 148, 256, 512}) {
    for (const onelane_attention_output output : kOutputs) {
      Case flash = make_case(rows, 64, {128, 512}, kV4, output);
      flash.window_page = 256;
      group.cases.push_back(flash);
      if (rows % 4 != 0 && rows != 1) continue;
      Case pro = make_case(rows, 128, {128, 1024}, kV4, output);
      pro.window_page = 256;
      pro.extra_page = rows % 8 == 0 ? 2 : 64;
      group.cases.push_back(pro);
    }
  }
  Case peak = make_case(4, 64, {16384, 0}, kV4, ONELANE_OUT_BF16);
  peak.window_records = 20000;
  group.cases.push_back(peak);
  return group;
}

Group v41() {
  Group group{.name = "v4.1 528 + 288"};
  for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 128, 300}) {
    for (const onelane_attention_output output : kOutputs) {
      group.cases.push_back(make_case(rows, 64, {128, rows % 3 == 0 ? 1024 : 512}, kV41, output));
    }
  }
  return group;
}

Group long_rows() {
  Group group{.name = "ratio 128, unclamped"};
  for (const int rows : {1, 2, 6, 17, 64}) {
    for (const int extra : {640, 2048, 4096, 8192}) {
      Case spec =
          make_case(rows, 64, {128, extra}, rows % 2 == 0 ? kV41 : kV4, kOutputs[static_cast<size_t>(rows) % 3]);
      spec.extra_page = 2;
      spec.extra_records = 9000;
      group.cases.push_back(spec);
    }
  }
  return group;
}

Group every_row_count() {
  Group group{.name = "rows 1 to 130"};
  for (int rows = 1; rows <= 130; ++rows) {
    const auto turn = static_cast<size_t>(rows);
    constexpr std::array<Widths, 5> kWidths = {{{128, 0}, {128, 512}, {64, 72}, {128, 1024}, {0, 130}}};
    const Formats formats = turn % 4 == 3 ? kBf16 : turn % 2 == 0 ? kV41 : kV4;
    group.cases.push_back(
        make_case(rows, 8 << (turn % 5), kWidths[turn / 3 % kWidths.size()], formats, kOutputs[turn % 3]));
  }
  return group;
}

Group every_format() {
  Group group{.name = "formats, pages, odd widths"};
  constexpr std::array kPages = {1, 2, 53, 61, 64, 69, 256, 576};
  constexpr std::array<Widths, 8> kWidths = {
      {{1, 0}, {0, 1}, {1, 1}, {7, 9}, {63, 65}, {128, 511}, {0, 777}, {129, 0}}};
  size_t turn = 0;
  for (const onelane_kv_format window : kFormats) {
    for (const onelane_kv_format extra : kFormats) {
      for (size_t i = 0; i < kPages.size(); ++i, ++turn) {
        Case spec = make_case(static_cast<int>(1 + turn % 9), 8 << (turn % 5), kWidths[(i + turn / 8) % kWidths.size()],
                              {window, extra}, kOutputs[turn % 3]);
        spec.window_page = kPages[i];
        spec.extra_page = kPages[(i + 3) % kPages.size()];
        spec.rope = turn % 2 == 0;
        group.cases.push_back(spec);
      }
    }
  }
  return group;
}

Group splits() {
  Group group{.name = "splits 1 2 4 8", .proof = Proof::kSplits};
  for (const Formats formats : {kV4, kV41, kBf16}) {
    for (const int rows : {1, 3, 6, 16, 64}) {
      for (const Widths widths : {Widths{128, 0}, Widths{128, 512}, Widths{128, 1024}, Widths{0, 40}}) {
        const auto turn = static_cast<size_t>(rows + widths.extra);
        group.cases.push_back(make_case(rows, rows == 3 ? 128 : 64, widths, formats, kOutputs[1 + turn % 2]));
      }
    }
    for (const int heads : {8, 16, 32, 64, 128}) {
      group.cases.push_back(make_case(5, heads, {128, 512}, formats, ONELANE_OUT_FP8));
      group.cases.push_back(make_case(2, heads, {128, 4096}, formats, ONELANE_OUT_BF16));
    }
  }
  return group;
}

Group replays() {
  Group group{.name = "same bits: again, in a graph", .proof = Proof::kReplay};
  for (const Formats formats : {kV4, kV41, kBf16}) {
    for (const int rows : {1, 2, 6, 8, 16, 33, 64, 128}) {
      for (const Widths widths : {Widths{128, 0}, Widths{128, 512}, Widths{128, 2048}}) {
        const auto turn = static_cast<size_t>(rows + widths.extra / 512);
        group.cases.push_back(make_case(rows, turn % 4 == 0 ? 16 : 64, widths, formats, kOutputs[turn % 3]));
      }
    }
  }
  return group;
}

Group hostile() {
  Group group{.name = "hostile values"};
  group.limits.l2 = 1e-2;  // one or two entries share the weight: errors do not average out
  group.limits.cosine = 5e-5;
  // Weights are rounded to bf16, so an output is off by as much of its records (up to 1), however they cancel.
  group.limits.element_abs = 0x1p-8;
  // An output that is one record again has its largest value on the very edge between two scales, now and then, and
  // one that is two encodings of a record its values between two codes.
  group.limits.fp8_scales_equal = 0.85;
  group.limits.fp8_codes_equal = 0.70;
  for (const Values values : {Values::kPeaked, Values::kEqual, Values::kNegative, Values::kFaulty, Values::kPlain}) {
    for (const Sinks sinks : {Sinks::kNone, Sinks::kMixed, Sinks::kHuge}) {
      for (const Formats formats : {kV4, kV41, kBf16}) {
        for (const int rows : {1, 33, 7}) {
          if (values == Values::kFaulty && rows == 1) continue;  // no other row to spoil
          const int heads = rows == 7 ? 16 : 64;
          Case spec = make_case(rows, heads, {128, 512}, formats, kOutputs[static_cast<size_t>(rows) % 3]);
          spec.values = values;
          spec.sinks = sinks;
          group.cases.push_back(spec);
        }
      }
    }
  }
  return group;
}

// Parts of one chunk of the kernels for few entries (160) and of several.
Group blocks() {
  Group group = hostile();
  group.name = "blocks of 8, 16, 64 heads";
  group.proof = Proof::kBlocks;
  group.cases.clear();
  size_t turn = 0;
  for (const Formats formats : {kV4, kV41, kBf16}) {
    for (const Widths widths : {Widths{128, 512}, Widths{128, 0}, Widths{77, 131}, Widths{128, 1900}}) {
      for (const Values values : {Values::kPlain, Values::kPeaked, Values::kFaulty, Values::kNegative}) {
        for (const int rows : {5, 140}) {
          Case spec = make_case(rows, 64, widths, formats, kOutputs[turn++ % 3]);
          spec.values = values;
          if (turn % 2 == 0) spec.window_lengths = spec.extra_lengths = Lengths::kNull;
          group.cases.push_back(spec);
        }
      }
    }
  }
  return group;
}

}  // namespace

std::vector<Group> all_groups(uint64_t seed, bool full) {
  std::vector<Group> groups = {flashmla(full), flashmla_corners(), flashinfer(),      production(),
                               v41(),          long_rows(),        every_row_count(), every_format(),
                               splits(),       blocks(),           replays(),         hostile()};
  for (Group& group : groups) {
    for (Case& spec : group.cases) {
      spec.name = group.name;
      spec.seed = ++seed;
    }
  }
  return groups;
}

std::string describe(const Case& spec) {
  const onelane_attention_shape& shape = spec.shape;
  constexpr const char* kOutputNames[] = {"bf16", "fp8", "grouped fp8"};
  const auto list = [](int width, onelane_kv_format format, int page) {
    return std::to_string(width) + " " + format_name(format) + " (page " + std::to_string(page) + ")";
  };
  return std::to_string(shape.rows) + " rows, " + std::to_string(shape.heads) + " heads, " +
         list(shape.window_width, shape.window_format, spec.window_page) + " + " +
         list(shape.extra_width, shape.extra_format, spec.extra_page) + ", " + kOutputNames[shape.output] + ", seed " +
         std::to_string(spec.seed);
}

double cost(const Case& spec) {
  return 1024.0 * spec.shape.rows * spec.shape.heads * (spec.shape.window_width + spec.shape.extra_width);
}

}  // namespace onelane::attention_test
