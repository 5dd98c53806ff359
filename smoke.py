import sys, time, torch, statistics, json, os
from fused_resnet import FusedResNet, reference
db=sys.argv[1]
def stream_us(f, n=200, rounds=9):
    out=[]
    for _ in range(20): f()
    torch.cuda.synchronize()
    for _ in range(rounds):
        a,b=torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(n): f()
        b.record(); b.synchronize(); out.append(a.elapsed_time(b)*1e3/n)
    return round(statistics.median(out),1)
def host_us(f,n=200):
    out=[]
    for _ in range(5):
        torch.cuda.synchronize(); t=time.perf_counter()
        for _ in range(20): f()
        out.append((time.perf_counter()-t)/20*1e6)
    return round(statistics.median(out),1)
def lat_us(f,n=300):
    out=[]
    for _ in range(n):
        torch.cuda.synchronize(); t=time.perf_counter(); f(); torch.cuda.synchronize(); out.append((time.perf_counter()-t)*1e6)
    return round(statistics.median(out),1)
ref=reference.randomize(reference.build('se_resnet9_fixup',3),1)
net=FusedResNet(db,in_channels=3); net.load_state_dict(ref.state_dict()); net.to('cuda',torch.float16)
r32=reference.build('se_resnet9_fixup',3); r32.load_state_dict(ref.state_dict()); r32.cuda()
x=torch.randn(128,3,64,64,device='cuda').half()
with torch.inference_mode():
    b=r32(x.float())
    for e in ({}, {'NOBR':'1'},{'NOPDL':'1'},{'NOBR':'1','NOPDL':'1'},{}):
        for k in ('NOBR','NOPDL'): os.environ.pop(k,None)
        os.environ.update(e); net.rebind()
        a=net(x); p=net._plan(x)
        print(e,'err %.2e'%float((a.float()-b).norm()/b.norm()),'graph',stream_us(p._graph.replay),'all',stream_us(lambda: net(x)),'lat',lat_us(lambda: net(x)),'host',host_us(lambda: net(x)), 'host graph', host_us(p._graph.replay))
    net.graph=False; net.rebind(); print('nograph', stream_us(lambda: net(x)), lat_us(lambda:net(x)), host_us(lambda: net(x)))
    print(*[ (r[0],r[1][:40],r[3]) for r in net.explain(x)][:2])
