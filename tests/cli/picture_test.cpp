// The readers of PNG and JPEG: what they read, and what they refuse. And the noise that the demo adds.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "cli/picture_samples.h"
#include "denoiser/exif.h"
#include "denoiser/noise.h"
#include "denoiser/picture.h"
#include "warpweave/error.h"

namespace warpweave::test {
namespace {

using denoiser::decode_picture;
using denoiser::Picture;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kGrey = 0, kRgb = 2, kPalette = 3, kGreyAlpha = 4, kRgba = 6;  // PNG colour types

std::string refusal(const Bytes& file) {
  try {
    (void)decode_picture(file, "p");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    return error.what();
  }
  return "accepted";
}

TEST(Png, RoundTripOfEveryKind) {
  for (int channels = 1; channels <= 4; ++channels) {
    const Picture p = gradient(13, 7, channels);
    const auto decoded = decode_picture(encode_png(p), "p");
    EXPECT_EQ(decoded.picture.width, 13);
    EXPECT_EQ(decoded.picture.height, 7);
    EXPECT_EQ(decoded.picture.channels, channels);
    EXPECT_EQ(decoded.picture.samples, p.samples);
    EXPECT_EQ(decoded.notice, "");
  }
}

TEST(Png, PalettesAreExpanded) {
  const Bytes palette = png_chunk("PLTE", {10, 20, 30, 40, 50, 60});
  const auto opaque = decode_picture(png(png_header(3, 1, 8, kPalette), palette, {0, 1, 0, 1}), "p");
  EXPECT_EQ(opaque.picture.channels, 3);
  EXPECT_THAT(opaque.picture.samples, ElementsAre(40, 50, 60, 10, 20, 30, 40, 50, 60));
  Bytes transparent = palette;
  append(transparent, png_chunk("tRNS", {7}));
  const auto alpha = decode_picture(png(png_header(2, 1, 1, kPalette), transparent, {0, 0x40}), "p");
  EXPECT_THAT(alpha.picture.samples, ElementsAre(10, 20, 30, 7, 40, 50, 60, 255));
}

TEST(Png, FewBitsAndTransparentGrey) {
  const auto bits = decode_picture(png(png_header(5, 1, 1, kGrey), {}, {0, 0xa8}), "p");
  EXPECT_THAT(bits.picture.samples, ElementsAre(255, 0, 255, 0, 255));
  const auto grey =
      decode_picture(png(png_header(2, 1, 8, kGrey), png_chunk("tRNS", {0, 9}), {0, 8, 9}), "p");
  EXPECT_THAT(grey.picture.samples, ElementsAre(8, 255, 9, 0));
}

TEST(Png, SixteenBitsAreRoundedToEightWithANotice) {
  // 255 * 0x7fff / 65535 = 127.498, 255 * 0x8100 / 65535 = 128.498; cutting off the low byte would give 127
  // and 129.
  const auto d = decode_picture(png(png_header(2, 1, 16, kGrey), {}, {0, 0x7f, 0xff, 0x81, 0x00}), "p");
  EXPECT_THAT(d.picture.samples, ElementsAre(127, 128));
  EXPECT_THAT(d.notice, HasSubstr("16-bit"));
}

TEST(Png, Interlaced) {
  // 2 x 2 pixels: pass 1 holds (0,0), pass 6 (1,0), pass 7 the second row.
  const auto d = decode_picture(png(png_header(2, 2, 8, kGrey, 1), {}, {0, 1, 0, 2, 0, 3, 4}), "p");
  EXPECT_THAT(d.picture.samples, ElementsAre(1, 2, 3, 4));
}

TEST(Png, BrokenFiles) {
  const Bytes good = png(png_header(2, 2, 8, kRgb), {}, {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6});
  ASSERT_EQ(decode_picture(good, "p").picture.samples.size(), 12u);
  for (std::size_t n = 0; n < good.size(); ++n)  // truncated anywhere
    EXPECT_THAT(refusal(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n))),
                StartsWith("p: "))
        << n;
  const auto with = [&](std::size_t at, std::uint8_t value) {
    Bytes bad = good;
    bad[at] = value;
    return bad;
  };
  const auto no_data = [](const Bytes& header) {
    Bytes file = png_signature();
    append(file, header);
    append(file, png_chunk("IEND", {}));
    return file;
  };
  Bytes header_twice = png_header(2, 2, 8, kRgb), no_header = png_signature(), bad_stream = no_header,
        short_header = no_header;
  append(header_twice, png_header(2, 2, 8, kRgb));
  append(no_header, png_data({0, 1, 2, 3}));
  append(bad_stream, png_header(2, 2, 8, kRgb));
  append(bad_stream, png_chunk("IDAT", {1, 2, 3, 4}));
  append(bad_stream, png_chunk("IEND", {}));
  append(short_header, png_chunk("IHDR", {0, 0, 0, 1}));
  const std::map<std::string, Bytes> broken = {
      {"header checksum", with(29, 0)},
      {"data checksum", with(good.size() - 13, 0x5a)},
      {"chunk length", with(8, 0x7f)},
      {"signature", with(1, 'p')},
      {"bit depth", png(png_header(2, 2, 3, kRgb), {}, {0})},
      {"bits for colour type", png(png_header(2, 2, 4, kRgb), {}, {0})},
      {"colour type", png(png_header(2, 2, 8, 5), {}, {0})},
      {"interlace", png(png_header(2, 2, 8, kRgb, 9), {}, {0})},
      {"width 0", png(png_header(0, 2, 8, kRgb), {}, {0})},
      {"height 0", png(png_header(2, 0, 8, kRgb), {}, {0})},
      {"width 2^31", png(png_header(0x80000000u, 2, 8, kRgb), {}, {0})},
      {"huge", png(png_header(100000, 100000, 8, kRgb), {}, {0})},
      {"bomb", png(png_header(10000, 10000, 8, kRgba), {}, {0})},
      {"palette missing", png(png_header(2, 1, 8, kPalette), {}, {0, 0, 0})},
      {"palette of 2 bytes", png(png_header(2, 1, 8, kPalette), png_chunk("PLTE", {1, 2}), {0, 0, 0})},
      {"filter type", png(png_header(2, 1, 8, kGrey), {}, {9, 1, 2})},
      {"too few rows", png(png_header(2, 2, 8, kGrey), {}, {0, 1, 2})},
      {"rows too short", png(png_header(9, 1, 8, kGreyAlpha), {}, {0, 1, 2})},
      {"no data", no_data(png_header(2, 2, 8, kRgb))},
      {"header twice", png(header_twice, {}, {0})},
      {"header missing", no_header},
      {"header short", short_header},
      {"not a zlib stream", bad_stream},
      {"unknown critical chunk", png(png_header(2, 1, 8, kGrey), png_chunk("ABCD", {1}), {0, 1, 2})},
  };
  for (const auto& [what, file] : broken) EXPECT_THAT(refusal(file), StartsWith("p: ")) << what;
  EXPECT_THAT(refusal(broken.at("huge")), HasSubstr("claims 100000 x 100000 pixels"));
  EXPECT_THAT(refusal(broken.at("bomb")), HasSubstr("more than its"));
}

TEST(Jpeg, BaselineAndProgressiveGreyAndColour) {
  const Picture colour = gradient(37, 21, 3), grey = gradient(37, 21, 1);
  for (const bool progressive : {false, true}) {
    const Picture c = decode_picture(jpeg(colour, {.progressive = progressive}), "p").picture;
    EXPECT_EQ(c.width, 37);
    EXPECT_EQ(c.channels, 3);
    EXPECT_GT(psnr(c, colour), 38);
    const Picture g = decode_picture(jpeg(grey, {.progressive = progressive, .grey = true}), "p").picture;
    EXPECT_EQ(g.channels, 1);
    EXPECT_GT(psnr(g, grey), 38);
  }
}

TEST(Jpeg, StandsUprightByItsOrientation) {
  const Picture upright = gradient(24, 16, 3);
  for (int orientation = 1; orientation <= 8; ++orientation) {
    // What a camera would store: turning it by its orientation gives `upright`. 6 and 8 undo each other.
    const int inverse = orientation == 6 ? 8 : orientation == 8 ? 6 : orientation;
    const Picture stored = denoiser::upright(upright, inverse);
    const Picture read = decode_picture(jpeg(stored, {.orientation = orientation}), "p").picture;
    ASSERT_EQ(read.width, 24) << orientation;
    EXPECT_GT(psnr(read, upright), 35) << orientation;
  }
  // Written out for one: stored on its right side, shown by a quarter turn clockwise.
  const Picture turned = denoiser::upright({2, 1, 1, {1, 2}}, 6);
  EXPECT_EQ(turned.height, 2);
  EXPECT_THAT(turned.samples, ElementsAre(1, 2));
  EXPECT_THAT(denoiser::upright({1, 2, 1, {1, 2}}, 6).samples, ElementsAre(2, 1));
}

TEST(Jpeg, BrokenFiles) {
  const Bytes good = jpeg(gradient(40, 40, 3), {});
  EXPECT_THAT(refusal(jpeg(gradient(40, 40, 3), {.cmyk = true})), HasSubstr("CMYK"));
  for (std::size_t n = 0; n + 2 < good.size(); n += 5)
    EXPECT_THAT(refusal(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n))),
                StartsWith("p: "))
        << n;

  const auto find_marker = [&](std::uint8_t marker) {
    for (std::size_t i = 0; i + 1 < good.size(); ++i)
      if (good[i] == 0xff && good[i + 1] == marker) return i;
    return std::size_t{0};
  };
  const std::size_t frame = find_marker(0xc0), scan = find_marker(0xda), tables = find_marker(0xc4);
  const auto with = [&](std::size_t at, const Bytes& values) {
    Bytes bad = good;
    std::copy(values.begin(), values.end(), bad.begin() + static_cast<std::ptrdiff_t>(at));
    return bad;
  };
  const std::map<std::string, Bytes> broken = {
      {"height 0", with(frame + 5, {0, 0})},
      {"width 0", with(frame + 7, {0, 0})},
      {"huge", with(frame + 5, {0xea, 0x60, 0xea, 0x60})},
      {"12 bits", with(frame + 4, {12})},
      {"2 components", with(frame + 9, {2})},
      {"no components", with(frame + 9, {0})},
      {"sampling 0", with(frame + 11, {0})},
      {"quantisation table 9", with(frame + 12, {9})},
      {"lossless", with(frame, {0xff, 0xc3})},
      {"arithmetic", with(frame, {0xff, 0xc9})},
      {"frame length", with(frame + 2, {0, 3})},
      {"scan of unknown component", with(scan + 5, {77})},
      {"scan length", with(scan + 2, {0, 3})},
      {"huffman table", with(tables + 5, {255, 255, 255, 255})},
      {"huffman table length", with(tables + 2, {0, 3})},
      {"data overwritten by a marker", with(scan + 20, {0xff, 0xd9})},
      {"second frame", with(scan, {0xff, 0xc0})},
      {"only the start", {0xff, 0xd8, 0xff}},
      {"start and end", {0xff, 0xd8, 0xff, 0xd9}},
      {"no frame", {0xff, 0xd8, 0xff, 0xda, 0, 2}},
  };
  for (const auto& [what, file] : broken) EXPECT_THAT(refusal(file), StartsWith("p: ")) << what;
  EXPECT_THAT(refusal(broken.at("huge")), HasSubstr("claims 60000 x 60000 pixels"));
}

TEST(Picture, OtherFiles) {
  EXPECT_THAT(refusal({}), HasSubstr("p: is empty"));
  EXPECT_THAT(refusal({'G', 'I', 'F', '8', '9', 'a'}), HasSubstr("neither a PNG nor a JPEG"));
}

TEST(Exif, DamagedSegmentsTellNothing) {
  const Bytes good = {'E', 'x', 'i',  'f',  0, 0, 'I', 'I', 42, 0, 8, 0, 0, 0,
                      1,   0,   0x12, 0x01, 3, 0, 1,   0,   0,  0, 6, 0, 0, 0};
  EXPECT_EQ(denoiser::exif_orientation(good), 6);
  for (std::size_t n = 0; n < good.size(); ++n)
    EXPECT_EQ(denoiser::exif_orientation(std::span(good).first(n)), 0) << n;
  const auto with = [&](std::size_t at, std::uint8_t value) {
    Bytes bad = good;
    bad[at] = value;
    return denoiser::exif_orientation(bad);
  };
  EXPECT_EQ(with(13, 255), 0);  // the directory is far past the end
  EXPECT_EQ(with(24, 9), 0);
  EXPECT_EQ(with(24, 0), 0);
  EXPECT_EQ(with(8, 43), 0);
  EXPECT_EQ(with(18, 4), 0);  // not a short
}

TEST(Noise, IsTheSameOnEveryMachine) {
  denoiser::NormalDeviates deviates(7);
  std::vector<double> first(4);
  for (double& v : first) v = deviates.next();
  // From an implementation in another language with the C library's logarithm.
  const std::vector<double> expected = {-0.041741523381452886, -0.1830802091092499, 0.8764814690994567,
                                        0.18137224678834885};
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(first[i], expected[i], 1e-13);
}

TEST(Noise, IsNormalWithTheStandardDeviationAskedFor) {
  denoiser::NormalDeviates deviates(1);
  constexpr int kCount = 200000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < kCount; ++i) {
    const double v = deviates.next();
    sum += v;
    squares += v * v;
    fourth += v * v * v * v;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.01);
  EXPECT_NEAR(fourth / kCount, 3, 0.1);
}

TEST(Noise, EstimateFindsTheLevel) {
  for (const double sigma : {5.0, 25.0, 50.0})
    for (const int channels : {1, 4}) {
      const Picture noisy = denoiser::add_noise(gradient(200, 150, channels), sigma, 3);
      EXPECT_NEAR(denoiser::estimate_noise(noisy), sigma, 0.1 * sigma) << channels;
    }
  EXPECT_EQ(denoiser::estimate_noise(gradient(1, 1, 3)), 0);
  EXPECT_NEAR(denoiser::estimate_noise(denoiser::add_noise(gradient(1, 4000, 1), 20, 3)), 20, 2);
  // Black borders do not hide the noise of what is between them.
  Picture bordered = denoiser::add_noise(gradient(200, 150, 1), 20, 3);
  std::fill(bordered.samples.begin(), bordered.samples.begin() + 200 * 100, std::uint8_t{0});
  EXPECT_NEAR(denoiser::estimate_noise(bordered), 20, 2);
}

TEST(Noise, PsnrByItsDefinition) {
  const Picture clean = {2, 1, 2, {100, 0, 50, 0}},
                off = {2, 1, 2, {105, 99, 50, 7}};  // alpha does not count
  EXPECT_NEAR(denoiser::psnr(off, clean), 10 * std::log10(255.0 * 255.0 / 12.5), 1e-9);
  EXPECT_TRUE(std::isinf(denoiser::psnr(clean, clean)));
}

}  // namespace
}  // namespace warpweave::test
