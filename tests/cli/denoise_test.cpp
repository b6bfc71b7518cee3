// warpweave denoise, with a network whose answer is known in closed form, and with the saved one.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "cli/models.h"
#include "cli/picture_samples.h"
#include "cli/process.h"
#include "denoiser/noise.h"

namespace warpweave::test {
namespace {

using denoiser::Picture;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class Denoise : public ::testing::Test {
 protected:
  Denoise() { write_mirror_denoiser(config, weights); }

  std::string put(const std::string& name, const Bytes& bytes) const {
    write_file(folder / name, std::string(bytes.begin(), bytes.end()));
    return folder / name;
  }
  Outcome run(const std::string& in, const std::string& out, const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"denoise",   in,      out,        "--config", config,
                                    "--weights", weights, "--device", "cpu"};
    all.insert(all.end(), more.begin(), more.end());
    return warpweave(all);
  }
  static std::uint8_t mirrored(std::uint8_t v, double sigma) {
    return static_cast<std::uint8_t>(std::lround(v - sigma * (v / 255.0 - 0.5)));
  }

  Folder folder;
  const std::string config = folder / "mirror.yaml", weights = folder / "mirror.safetensors",
                    out = folder / "out.png";
};

TEST_F(Denoise, EverySizeAndKind) {
  for (const auto& [width, height] : {std::pair{1, 1}, {1, 9}, {7, 1}, {2, 2}, {3, 3}, {13, 8}, {31, 17}})
    for (int channels = 1; channels <= 4; ++channels) {
      SCOPED_TRACE(::testing::Message() << width << " x " << height << " x " << channels);
      const Picture p = gradient(width, height, channels);
      const Outcome o = run(put("in.png", encode_png(p)), out, {"--sigma", "30"});
      ASSERT_EQ(o.status, 0) << o.err;
      EXPECT_THAT(o.err, IsEmpty());
      const Picture q = denoiser::read_picture(out).picture;
      ASSERT_EQ(q.width, width);
      ASSERT_EQ(q.height, height);
      ASSERT_EQ(q.channels, channels);
      for (std::size_t i = 0; i < p.samples.size(); ++i) {
        const bool alpha =
            p.has_alpha() && i % static_cast<std::size_t>(channels) == static_cast<std::size_t>(channels) - 1;
        // Halves may round either way in single precision.
        EXPECT_NEAR(q.samples[i], alpha ? p.samples[i] : mirrored(p.samples[i], 30), alpha ? 0 : 1) << i;
      }
    }
}

TEST_F(Denoise, ReadsJpeg) {
  const Outcome o =
      run(put("in.jpg", jpeg(gradient(33, 20, 3), {.progressive = true})), out, {"--sigma", "10"});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(denoiser::read_picture(out).picture.width, 33);
}

TEST_F(Denoise, ReportsPsnrAndTime) {
  const Picture clean = gradient(40, 30, 3), noisy = denoiser::add_noise(clean, 20, 5);
  const Outcome o = run(put("in.png", encode_png(noisy)), out,
                        {"--sigma", "20", "--reference", put("clean.png", encode_png(clean))});
  ASSERT_EQ(o.status, 0) << o.err;
  char expected[64];
  std::snprintf(expected, sizeof expected, "noisy     %.2f dB", denoiser::psnr(noisy, clean));
  EXPECT_THAT(o.out, HasSubstr(expected));
  std::snprintf(expected, sizeof expected, "denoised  %.2f dB",
                denoiser::psnr(denoiser::read_picture(out).picture, clean));
  EXPECT_THAT(o.out, HasSubstr(expected));
  EXPECT_THAT(o.out, HasSubstr("sigma 20.0, given"));
  EXPECT_THAT(o.out, HasSubstr(" s\n"));
  EXPECT_THAT(run(folder / "in.png", out, {}).out, HasSubstr("estimated"));
  EXPECT_THAT(run(folder / "in.png", out, {}).out, Not(HasSubstr("dB")));
}

TEST_F(Denoise, AddedNoiseDependsOnTheSeedAlone) {
  const std::string in = put("in.png", encode_png(gradient(40, 30, 3)));
  const auto side = [&](const std::string& name, const std::string& seed) {
    const Outcome o = run(in, out, {"--add-noise", "25", "--seed", seed, "--side-by-side", folder / name});
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_THAT(o.out, HasSubstr("sigma 25.0, added"));
    return read_file(folder / name);
  };
  const std::string first = side("a.png", "1");
  EXPECT_EQ(first, side("b.png", "1"));
  EXPECT_NE(first, side("c.png", "2"));
  const Picture all =
      denoiser::read_picture(folder / "a.png").picture;  // noisy, denoised, clean, two gaps of 4
  EXPECT_EQ(all.width, 3 * 40 + 2 * 4);
  EXPECT_EQ(all.height, 30);
  const Picture clean = gradient(40, 30, 3), noisy = denoiser::add_noise(clean, 25, 1);
  for (const int x : {0, 17, 39}) {
    EXPECT_EQ(all.samples[static_cast<std::size_t>(3 * x)], noisy.samples[static_cast<std::size_t>(3 * x)]);
    EXPECT_EQ(all.samples[static_cast<std::size_t>(3 * (88 + x))],
              clean.samples[static_cast<std::size_t>(3 * x)]);
  }
}

TEST_F(Denoise, NoticesUnlessQuiet) {
  const std::string in = put("in.png", png(png_header(1, 1, 16, 0), {}, {0, 1, 2}));
  EXPECT_THAT(run(in, out, {"--sigma", "20"}).err, HasSubstr("in.png: 16-bit samples are reduced"));
  EXPECT_THAT(run(in, out, {"--sigma", "90"}).err, HasSubstr("outside 4 to 52"));
  EXPECT_THAT(run(in, out, {"--sigma", "90", "--quiet"}).err, IsEmpty());
}

TEST_F(Denoise, Errors) {
  const std::string good = put("good.png", encode_png(gradient(4, 4, 3)));
  const auto expect_error = [&](const std::string& in, const std::string& to,
                                const std::vector<std::string>& more, const std::string& words) {
    const Outcome o = run(in, to, more);
    EXPECT_EQ(o.status, 2);
    EXPECT_THAT(o.err, StartsWith("warpweave: error: "));
    EXPECT_THAT(o.err, HasSubstr(words));
    EXPECT_FALSE(std::filesystem::exists(out));
  };
  expect_error(folder / "no.png", out, {}, "no.png: ");
  expect_error(folder.path(), out, {}, "directory");
  expect_error(put("text.png", {'h', 'i'}), out, {}, "text.png: is neither a PNG nor a JPEG");
  expect_error(put("cut.png", Bytes(30, 0x89)), out, {}, "cut.png: ");
  expect_error(put("cmyk.jpg", jpeg(gradient(9, 9, 3), {.cmyk = true})), out, {}, "cmyk.jpg: is a CMYK JPEG");
  expect_error(put("bomb.png", png(png_header(9000, 9000, 8, 2), {}, {0})), out, {},
               "bomb.png: claims 9000 x 9000");
  expect_error(good, folder / "out.jpg", {}, "must end in .png");
  expect_error(good, folder / "no/such/out.png", {}, "no/such/out.png: ");
  expect_error(good, out, {"--reference", put("small.png", encode_png(gradient(3, 4, 3)))},
               "small.png: is 3 x 4");
  expect_error(good, out, {"--reference", put("grey.png", encode_png(gradient(4, 4, 1)))},
               "grey.png: is 4 x 4 pixels in grey");
  expect_error(good, out, {"--side-by-side", folder / "side.txt"}, "side.txt: ");
  // A model that is no denoiser.
  const BlockFiles block;
  const Outcome o = warpweave(
      {"denoise", good, out, "--config", block.config, "--weights", block.weights, "--device", "cpu"});
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err, HasSubstr("a denoiser maps 4 channels"));
}

TEST_F(Denoise, LooksForTheModelWhereItIsTold) {
  const std::string in = put("in.png", encode_png(gradient(4, 4, 3)));
  std::filesystem::create_directories(folder.path() / "data" / "configs");
  std::filesystem::create_directories(folder.path() / "data" / "weights");
  std::filesystem::copy_file(config, folder.path() / "data/configs/denoiser.yaml");
  std::filesystem::copy_file(weights, folder.path() / "data/weights/denoiser.safetensors");
  const Outcome o = warpweave({"denoise", in, out, "--sigma", "30", "--device", "cpu"},
                              {.environment = {{"WARPWEAVE_DATA_DIR", folder / "data"}}});
  ASSERT_EQ(o.status, 0) << o.err;
  EXPECT_NEAR(denoiser::read_picture(out).picture.samples[0], mirrored(gradient(4, 4, 3).samples[0], 30), 1);
}

TEST(SavedDenoiser, CleansAPhotograph) {
  const std::string source = WARPWEAVE_SOURCE_DIR;
  const std::string photograph = source + "/apps/denoiser/pictures/chelsea.png";
  const Folder folder;
  // An odd-sized piece, so that the test is quick.
  const Picture whole = denoiser::read_picture(photograph).picture;
  Picture piece = Picture::blank(127, 101, 3);
  for (std::int64_t y = 0; y < piece.height; ++y)
    std::copy_n(whole.samples.begin() + ((y + 80) * whole.width + 120) * 3, piece.width * 3,
                piece.samples.begin() + y * piece.width * 3);
  const Bytes bytes = encode_png(piece);
  write_file(folder / "in.png", std::string(bytes.begin(), bytes.end()));
  const Outcome o =
      warpweave({"denoise", folder / "in.png", folder / "out.png", "--add-noise", "25", "--device", "cpu"});
  ASSERT_EQ(o.status, 0) << o.err;
  const double before = denoiser::psnr(denoiser::add_noise(piece, 25, 0), piece);
  const double after = denoiser::psnr(denoiser::read_picture(folder / "out.png").picture, piece);
  EXPECT_NEAR(before, 20.2, 0.5);
  EXPECT_GT(after, before + 6);
}

}  // namespace
}  // namespace warpweave::test
