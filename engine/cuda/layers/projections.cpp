// Layers that are one product: linear, patch_embed and patch_unembed. The product's operand is the grid
// itself where its channels need no padding; else it is copied into the workspace with zeros added, slice by
// slice.
#include "cuda/layers/layers.h"
#include "cuda/slices.h"
#include "graph/layers/linear.h"
#include "graph/layers/patch.h"

namespace warpweave::cuda {
namespace {

// How cells of the grid become operands, and results cells.
enum class Gather { direct, pad, patches };
enum class Scatter { direct, patches };

struct Form {
  std::int64_t k = 0, n = 0;             // of the layer's weight
  std::int64_t patch = 1, channels = 0;  // of the image, where there is one
  bool embed = false, unembed = false;

  std::int64_t k_pitch(const Family& family, Precision precision) const {
    return family.token_pitch(k, precision);
  }
  std::int64_t n_pitch(const Family& family, Precision precision) const {
    return unembed ? family.token_pitch(n, precision) : n;
  }
  Gather gather(const Family& family, Precision precision) const {
    return embed ? Gather::patches : k_pitch(family, precision) != k ? Gather::pad : Gather::direct;
  }
};

Form form_of(const graph::Layer& layer) {
  if (const auto* linear = dynamic_cast<const graph::Linear*>(&layer))
    return {.k = linear->dim, .n = linear->out};
  if (const auto* embed = dynamic_cast<const graph::PatchEmbed*>(&layer)) {
    return {.k = embed->patch * embed->patch * embed->channels,
            .n = embed->dim,
            .patch = embed->patch,
            .channels = embed->channels,
            .embed = true};
  }
  const auto& unembed = static_cast<const graph::PatchUnembed&>(layer);
  return {.k = unembed.dim,
          .n = unembed.patch * unembed.patch * unembed.channels,
          .patch = unembed.patch,
          .channels = unembed.channels,
          .unembed = true};
}

std::vector<ProjectionShape> projections_of(const Family& family, const graph::Layer& layer,
                                            Precision precision) {
  const Form form = form_of(layer);
  return {{.n = form.n_pitch(family, precision), .k = form.k_pitch(family, precision), .own_kernel = true}};
}

std::vector<KernelSpec> kernels_of(const Family& family, const plan::LayerProblem& problem,
                                   const plan::Conditions& conditions) {
  const Form form = form_of(*problem.layer);
  const Precision precision = conditions.precision;
  const std::int64_t k = form.k_pitch(family, precision);
  auto list = family.projection_kernels(projections_of(family, *problem.layer, precision)[0], precision);
  const Gather gather = form.gather(family, precision);
  if (gather == Gather::pad) {
    for (auto& spec : family.norm_kernels({graph::NormKind::none, form.k, k}, precision))
      list.push_back(spec);
  }
  if (gather == Gather::patches)
    list.push_back(elementwise_kernel("image_to_patches", device_type(precision)));
  if (form.unembed) list.push_back(elementwise_kernel("patches_to_image", device_type(precision)));
  return list;
}

class ProductStep final : public Step {
 public:
  ProductStep(const BuildContext& context, const graph::Layer& layer, const weights::LayerWeights& weights)
      : form_(form_of(layer)),
        element_(static_cast<std::int64_t>(itemsize(storage_type(context.precision)))),
        k_(form_.k_pitch(context.family, context.precision)),
        n_(form_.n_pitch(context.family, context.precision)),
        gather_(form_.gather(context.family, context.precision)) {
    product_ = context.family.projection(
        {.n = n_, .k = k_, .own_kernel = true}, padded(weights.find("weight"), form_.n, form_.k, n_, k_),
        padded(weights.find("bias"), form_.n, 1, n_, 1), context.precision, context.device);
    const auto kernel = [&](const char* name) {
      return context.device.kernels().get(elementwise_kernel(name, device_type(context.precision)));
    };
    if (gather_ == Gather::pad) {
      pad_ = context.family.norm({graph::NormKind::none, form_.k, k_}, context.precision, context.device);
    }
    if (gather_ == Gather::patches) to_patches_ = kernel("image_to_patches");
    if (form_.unembed) to_image_ = kernel("patches_to_image");
  }

  bool in_place() const noexcept override { return false; }
  std::unique_ptr<const BoundStep> bind(const StepShape& shape) const override;

 private:
  class Bound;
  Form form_;
  std::int64_t element_, k_, n_;
  Gather gather_;
  std::unique_ptr<const Projection> product_;
  std::unique_ptr<const NormOperation> pad_;
  Kernel to_patches_, to_image_;
};

class ProductStep::Bound final : public BoundStep {
 public:
  Bound(const ProductStep& step, const StepShape& shape)
      : step_(step),
        columns_(shape.input.columns / (step.form_.embed ? step.form_.patch : 1)),
        rows_(shape.input.rows / (step.form_.embed ? step.form_.patch : 1)),
        operand_(step.gather_ == Gather::direct ? 0 : step.k_ * step.element_),
        result_(step.form_.unembed ? step.n_ * step.element_ : 0),
        scratch_(step.product_->scratch_bytes_per_token()),
        slices_(1, shape.batch * rows_ * columns_, 1, Cut::rows, operand_ + result_ + scratch_, 3,
                operand_ + result_ + scratch_ ? shape.workspace_limit : 0),
        product_(step.product_->bind(rows_ * columns_)) {}

  std::size_t workspace_bytes() const noexcept override {
    const std::size_t tokens = slices_.largest();
    return aligned(tokens * operand_) + aligned(tokens * result_) + aligned(tokens * scratch_);
  }

  void enqueue(const StepRun& run) const override {
    const std::size_t largest = slices_.largest();
    std::byte* operand = run.workspace;
    std::byte* result = operand + aligned(largest * operand_);
    std::byte* scratch = result + aligned(largest * result_);
    const Form& form = step_.form_;
    slices_.for_each([&](const Slice& s) {
      const std::int64_t tokens = s.tokens(), first = s.cells.first;
      const kernels::Cells cells{first, tokens, tokens};
      const auto* x = static_cast<const std::byte*>(run.x);
      const void* a = step_.gather_ == Gather::direct ? x + first * form.k * step_.element_ : operand;
      if (step_.gather_ == Gather::pad) {
        step_.pad_->enqueue(run.stream,
                            {x, operand, nullptr, nullptr, nullptr, cells, tokens, form.k, step_.k_, 0.0f});
      }
      if (step_.gather_ == Gather::patches) {
        step_.to_patches_.launch(run.stream, {.blocks = loop_blocks(tokens * step_.k_, 256), .threads = 256},
                                 patches(x, operand, first, tokens, step_.k_));
      }
      product_->enqueue(run.stream, {a, nullptr, form.unembed ? result : run.y,
                                     form.unembed ? dense(tokens) : cells, tokens, scratch});
      if (form.unembed) {
        step_.to_image_.launch(run.stream, {.blocks = loop_blocks(tokens * form.n, 256), .threads = 256},
                               patches(result, run.y, first, tokens, step_.n_));
      }
    });
  }

 private:
  kernels::PatchParams patches(const void* x, void* y, std::int64_t first, std::int64_t tokens,
                               std::int64_t pitch) const {
    return {x, y, first, tokens, columns_, step_.form_.patch, step_.form_.channels, pitch};
  }

  const ProductStep& step_;
  std::int64_t columns_, rows_;              // of patches, or of cells
  std::int64_t operand_, result_, scratch_;  // bytes per token
  Slices slices_;
  std::unique_ptr<const BoundProjection> product_;
};

std::unique_ptr<const BoundStep> ProductStep::bind(const StepShape& shape) const {
  return std::make_unique<Bound>(*this, shape);
}

std::unique_ptr<const Step> build(const BuildContext& context, const graph::Layer& layer,
                                  const weights::LayerWeights& weights) {
  return std::make_unique<ProductStep>(context, layer, weights);
}

}  // namespace

const LayerBuilder kLinear = {"linear", projections_of, kernels_of, build};
const LayerBuilder kPatchEmbed = {"patch_embed", projections_of, kernels_of, build};
const LayerBuilder kPatchUnembed = {"patch_unembed", projections_of, kernels_of, build};

}  // namespace warpweave::cuda
