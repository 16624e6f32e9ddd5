// A device that torch calls `cuda`, whose memory is the host's: see __init__.py.
//
// Tensors of the device have storages of their own kind. An operator without a kernel here (all but those at the
// end) runs on the CPU over the same bytes, after a look at where its arguments are: as CUDA, it refuses tensors
// of both devices.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <set>
#include <string>

using at::Tensor;
using namespace c10;

namespace {

// One process computes on one device: that of its rank.
Device of_rank() {
  const char* rank = getenv("LOCAL_RANK");
  return Device(DeviceType::CUDA, static_cast<DeviceIndex>(rank ? atoi(rank) : 0));
}
const Device HERE = of_rank();
const Device HOST(DeviceType::CPU);
constexpr DeviceIndex MOST = 8;
const Stream STREAM(Stream::DEFAULT, HERE);

struct Guard final : impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  DeviceIndex deviceCount() const noexcept override { return MOST; }
  Device getDevice() const override { return HERE; }
  Device exchangeDevice(Device) const override { return HERE; }
  Stream getStream(Device) const noexcept override { return STREAM; }
  Stream getDefaultStream(Device) const override { return STREAM; }
  Stream getNewStream(Device, int) const override { return STREAM; }
  Stream exchangeStream(Stream) const noexcept override { return STREAM; }
  void synchronizeDevice(const DeviceIndex) const override {}
  void record(void** event, const Stream&, const DeviceIndex, const EventFlag) const override {
    *event = reinterpret_cast<void*>(1);
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
Guard guard;

struct Memory final : Allocator {
  DataPtr allocate(size_t bytes) override {
    void* data = bytes ? GetCPUAllocator()->raw_allocate(bytes) : nullptr;
    return {data, data, &free_, HERE};
  }
  static void free_(void* data) {
    if (data) GetCPUAllocator()->raw_deallocate(data);
  }
  DeleterFnPtr raw_deleter() const override { return &free_; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
};
Memory memory;

}  // namespace

namespace at {
struct CUDAHooks : CUDAHooksInterface {  // torch looks for this name
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return MOST; }
  int getNumGPUs() const override { return MOST; }
  DeviceIndex current_device() const override { return HERE.index(); }
  DeviceIndex getCurrentDevice() const override { return HERE.index(); }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return HERE.index(); }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return HERE.index(); }
  void setCurrentDevice(DeviceIndex) const override {}
  void deviceSynchronize(DeviceIndex) const override {}
  Device getDeviceFromPtr(void*) const override { return HERE; }
  Allocator* getPinnedMemoryAllocator() const override { return GetCPUAllocator(); }
  Allocator* getCUDADeviceAllocator() const override { return &memory; }
};
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at

namespace {

// The bytes of a storage, under another device.
Storage over(const Storage& storage, Device device, Allocator* allocator) {
  auto forget = [](void* kept) { delete static_cast<Storage*>(kept); };
  DataPtr data(const_cast<void*>(storage.data()), new Storage(storage), +forget, device);
  return Storage(Storage::use_byte_size_t(), storage.nbytes(), std::move(data), allocator, true);
}

Tensor shaped_like(const Tensor& like, Storage storage, DispatchKey key) {
  Tensor made = at::detail::make_tensor<TensorImpl>(std::move(storage), DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  return made;
}

// The same bytes as a tensor of the CPU.
Tensor on_host(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  Tensor made = shaped_like(tensor, over(tensor.storage(), HOST, GetCPUAllocator()), DispatchKey::CPU);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

struct Argument {
  Tensor given, host;
  std::vector<int64_t> sizes;
  const void* data;
};

// A result of the CPU as one of the device: an argument, a view of one, or new.
Tensor on_device(const Tensor& result, const std::vector<Argument>& arguments) {
  if (!result.defined() || !result.is_cpu()) return result;
  for (auto& one : arguments)
    if (one.host.is_same(result)) return one.given;
  for (auto& one : arguments)
    if (one.host.storage().is_alias_of(result.storage()))
      return shaped_like(result, one.given.storage(), DispatchKey::CUDA);
  return shaped_like(result, over(result.storage(), HERE, &memory), DispatchKey::CUDA);
}

bool takes_both(const std::string& name) {  // indices of CUDA tensors may be on the CPU
  static const std::set<std::string> names = {
      "aten::_to_copy", "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
      "aten::_foreach_copy_"};
  return names.count(name);
}

void run_on_host(const OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t begin = stack->size() - schema.arguments().size();
  std::vector<Argument> arguments;
  bool to_host = false, has_host_tensor = false;
  auto take = [&](const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) {
      has_host_tensor |= tensor.is_cpu() && tensor.dim() > 0;
      return tensor;
    }
    Tensor host = on_host(tensor);
    arguments.push_back({tensor, host, host.sizes().vec(), host.storage().data()});
    return host;
  };
  for (size_t at = begin; at < stack->size(); at++) {
    IValue& value = (*stack)[at];
    if (value.isTensor()) {
      value = take(value.toTensor());
    } else if (value.isTensorList()) {
      List<Tensor> taken;
      for (const Tensor& tensor : value.toTensorVector()) taken.push_back(take(tensor));
      value = taken;
    } else if (value.isOptionalTensorList()) {
      List<std::optional<Tensor>> taken;
      for (const auto& tensor : value.toOptionalTensorVector())
        taken.push_back(tensor ? std::optional<Tensor>(take(*tensor)) : std::nullopt);
      value = taken;
    } else if (value.isDevice()) {
      to_host = value.toDevice().is_cpu();
      value = HOST;
    }
  }
  TORCH_CHECK(arguments.empty() || !has_host_tensor || takes_both(schema.name()),
              "Expected all tensors to be on the same device, but found at least two devices, ", HERE,
              " and cpu! (", schema.name(), ", pretended)");
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  for (auto& one : arguments) {  // outputs that the operator resized
    const bool has_moved = one.host.storage().data() != one.data;
    auto* given = one.given.unsafeGetTensorImpl();
    if (has_moved) given->set_storage_keep_dtype(over(one.host.storage(), HERE, &memory));
    if (has_moved || !one.host.sizes().equals(one.sizes))
      given->set_sizes_and_strides(one.host.sizes(), one.host.strides(), one.host.storage_offset());
  }
  if (to_host) return;
  for (size_t at = stack->size() - schema.returns().size(); at < stack->size(); at++) {
    IValue& value = (*stack)[at];
    if (value.isTensor()) {
      value = on_device(value.toTensor(), arguments);
    } else if (value.isTensorList()) {
      List<Tensor> made;
      for (const Tensor& tensor : value.toTensorVector()) made.push_back(on_device(tensor, arguments));
      value = made;
    }
  }
}

using Sizes = SymIntArrayRef;
using Type = std::optional<at::ScalarType>;
using Where = std::optional<at::Device>;

Tensor empty(Sizes sizes, Type type, std::optional<at::Layout>, Where, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), &memory, DispatchKeySet(DispatchKey::CUDA),
                                   at::dtype_or_default(type), format);
}

Tensor empty_strided(Sizes sizes, Sizes strides, Type type, std::optional<at::Layout>, Where, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                                           &memory, DispatchKeySet(DispatchKey::CUDA),
                                           at::dtype_or_default(type));
}

Tensor& copy_(Tensor& self, const Tensor& source, bool) {
  on_host(self).copy_(on_host(source));
  return self;
}

Tensor copy_from(const Tensor& source, const Tensor& self, bool) {
  on_host(self).copy_(on_host(source));
  return self;
}

const Tensor& resize_(const Tensor& self, Sizes asked, std::optional<at::MemoryFormat>) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(asked);
  auto* inner = self.unsafeGetTensorImpl();
  size_t bytes = (inner->storage_offset() + c10::multiply_integers(sizes)) * self.dtype().itemsize();
  if (bytes > self.storage().nbytes())
    at::native::resize_bytes_cpu(self.storage().unsafeGetStorageImpl(), bytes);
  inner->set_sizes_contiguous(sizes);
  return self;
}

Tensor& set_(Tensor& self, at::Storage storage, SymInt offset, Sizes sizes, Sizes strides) {
  auto* inner = self.unsafeGetTensorImpl();
  inner->set_storage_keep_dtype(std::move(storage));
  inner->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                               offset.expect_int());
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage storage) {
  const int64_t count = storage.nbytes() / self.dtype().itemsize();
  return set_(self, std::move(storage), 0, {SymInt(count)}, {SymInt(1)});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_(self, source.storage(), source.storage_offset(), source.sym_sizes(), source.sym_strides());
}

Tensor as_strided(const Tensor& self, Sizes sizes, Sizes strides, std::optional<SymInt> offset) {
  Tensor made = shaped_like(self, self.storage(), DispatchKey::CUDA);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
      offset ? offset->expect_int() : self.storage_offset());
  return made;
}

Tensor reshape_alias(const Tensor& self, Sizes sizes, Sizes strides) {
  return as_strided(self, sizes, strides, std::nullopt);
}

Tensor view(const Tensor& self, Sizes sizes) {
  return shaped_like(on_host(self).view_symint(sizes), self.storage(), DispatchKey::CUDA);
}

int64_t choose_sdp(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                   std::optional<double>, bool) {
  return 0;  // plain products: the fused kernels of the CPU have other names than those of CUDA
}

bool is_pinned(const Tensor&, Where) { return false; }
void record_stream(Tensor&, at::Stream) {}
Tensor bytes_on_host(const Tensor& tensor) { return on_host(tensor); }
void resize_storage(const Tensor& tensor, int64_t bytes) {
  at::native::resize_bytes_cpu(tensor.storage().unsafeGetStorageImpl(), bytes);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("view", view);
  m.impl("_fused_sdp_choice", choose_sdp);
  m.impl("is_pinned", is_pinned);
  m.impl("record_stream", record_stream);
}

TORCH_LIBRARY(pretended_gpus, m) {
  m.def("bytes_on_host(Tensor tensor) -> Tensor", bytes_on_host);
  m.def("resize_storage(Tensor tensor, int bytes) -> ()", resize_storage);
}

}  // namespace

// Called before torch is imported.
extern "C" void pretend() {
  impl::registerDeviceGuard(DeviceType::CUDA, &guard);
  SetAllocator(DeviceType::CUDA, &memory);
}
