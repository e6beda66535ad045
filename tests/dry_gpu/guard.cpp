// A device guard and hooks for "cuda" that do nothing, for a torch built without CUDA. With them fake
// tensors of device cuda work, the backward pass included, on a machine without a GPU.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
const c10::Device the_device{c10::DeviceType::CUDA, 0};
const c10::Stream the_stream{c10::Stream::DEFAULT, the_device};

struct NoDevice final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return the_device; }
  c10::Device getDevice() const override { return the_device; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const noexcept override { return the_stream; }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return the_stream; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};
NoDevice guard;

// As CUDA chooses on Hopper (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp), where cuDNN, if
// preferred, keeps what flash attention keeps. Flash attention knows no float32 and no masks, the
// memory-efficient kernel no groups of heads.
int64_t choose_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& mask, double, bool is_causal, std::optional<double>, bool) {
  const bool half = query.scalar_type() == at::kBFloat16 || query.scalar_type() == at::kHalf;
  const auto size = query.size(-1);
  const bool square = query.size(-2) == key.size(-2) || !is_causal;
  auto chosen = at::SDPBackend::math;
  if (half && !mask && square && size == key.size(-1) && size == value.size(-1) && size <= 256)
    chosen = at::SDPBackend::flash_attention;
  else if (query.size(1) == key.size(1) && size % (half ? 8 : 4) == 0 && value.size(-1) % (half ? 8 : 4) == 0)
    chosen = at::SDPBackend::efficient_attention;
  return static_cast<int64_t>(chosen);
}
}  // namespace

namespace at {
// Registered under this very name, by which autograd finds the machine's accelerator.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void deviceSynchronize(DeviceIndex) const override {}
  void init() const override {}
};
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

extern "C" void install() {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].store(&guard);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);
}
